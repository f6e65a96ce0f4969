"""Harbor trials in Docker containers driven through the Engine API: no CLI and no network a trial."""

UNUSED_DAYS = 30.0  # an image that was not used for this long is removed before a run
