"""Agents that are programs in the container."""
