"""The places of trials: each module has one venue, imported by its name when a task source needs it."""
