"""Harbor trials in Docker containers driven through the Engine API: no CLI and no network a trial."""
