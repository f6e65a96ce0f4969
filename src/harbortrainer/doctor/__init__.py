"""The commands of `doctor`: probe a server, compare two, check and clean Docker."""
