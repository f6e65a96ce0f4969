"""Copies of a run's rows besides metrics.jsonl. A sink never stops a run."""
