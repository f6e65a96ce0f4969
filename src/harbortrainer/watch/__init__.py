"""What a person sees of a run: state of the run, live view, log file."""
