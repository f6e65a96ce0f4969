"""Rebuilds advantages and datums of a past run from its files, under its settings or others."""
