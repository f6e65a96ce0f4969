"""Tasks: sources, loading, identity, split, order and curriculum."""
