"""Task -> trial -> trajectory: Harbor trials under our own limits."""
