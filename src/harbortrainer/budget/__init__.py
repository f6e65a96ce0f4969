"""What a run has spent, by purpose, its prices, and the caps that end it."""
