"""Which tasks deserve training on: where they come from, what they are, whether they can be trusted."""
