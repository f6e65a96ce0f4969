"""Trajectories -> advantages -> datums. Pure functions, no I/O."""
