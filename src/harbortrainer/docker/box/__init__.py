"""One container: its shell, its files, what is sent and fetched."""
