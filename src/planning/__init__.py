"""The forecast of `--dry-run`: what a run, or the rest of it, will take."""
