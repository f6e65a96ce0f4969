"""What a run will cost, what it has spent and on what, and the caps that end it."""
