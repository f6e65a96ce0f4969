"""Files that survive a crash: atomic files, journals, disk errors in one line, marks of processes."""
