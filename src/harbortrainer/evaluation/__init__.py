"""Evaluation: numbers with their uncertainty, and a verdict in words where two policies are compared."""
