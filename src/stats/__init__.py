"""Statistics of rewards: pass@k, confidence intervals clustered by task, paired comparison. Pure functions."""
