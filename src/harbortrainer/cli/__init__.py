"""The command line: commands, their arguments, help and output."""
