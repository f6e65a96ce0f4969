"""Whether the daemon can carry a run, and what a run asks of it."""
