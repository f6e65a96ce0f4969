"""Trained weights leave: fetched from a server as a PEFT adapter."""
