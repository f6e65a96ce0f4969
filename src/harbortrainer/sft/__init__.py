"""Supervised fine-tuning: conversations become datums of cross entropy, and train an adapter."""
