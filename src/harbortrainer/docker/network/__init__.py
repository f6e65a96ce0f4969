"""The network of trials, and what they reach."""
