"""Images of tasks: built, pulled, kept and copied."""
