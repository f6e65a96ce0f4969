"""Connect to a Tinker API and use it within what it can do."""
