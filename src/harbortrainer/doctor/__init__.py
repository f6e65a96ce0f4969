"""The commands of `doctor`: probe a server, check and clean Docker."""
