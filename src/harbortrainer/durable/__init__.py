"""What is on disk survives a crash: whole files, journals, and errors of the disk as one line."""
