"""The one command line: every command, its arguments, its help, its output."""
