"""Task -> trial -> trajectory, at the venue of the task and under the limits of the run."""
