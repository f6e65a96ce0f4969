"""Trials on several machines: what runs on each of them, and what the driver knows of it."""
