"""Where a run's rows go besides metrics.jsonl. Nothing here may stop a run."""
