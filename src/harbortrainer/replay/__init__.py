"""Rebuilds advantages and datums of a past run from its files, and compares them with its ledger."""
