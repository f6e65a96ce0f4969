"""Harbor environments in Docker containers through the Engine API, and what a run needs of the daemon."""

UNUSED_DAYS = 30.0  # an image that was not used for this long is removed before a run
