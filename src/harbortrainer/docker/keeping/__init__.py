"""What runs leave on the daemon, and its disk."""
