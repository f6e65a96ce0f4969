"""Measure what a Tinker API really does with its settings, by their effect on temporary adapters."""
