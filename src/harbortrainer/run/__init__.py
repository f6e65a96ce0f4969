"""What a run leaves behind: directory, metrics, checkpoints, display."""
