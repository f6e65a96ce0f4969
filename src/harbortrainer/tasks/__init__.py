"""Tasks: sources, loading, identity, split and order."""
