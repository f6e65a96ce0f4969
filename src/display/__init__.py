"""What a person sees of a run: the board that everything is noted on, the panel made of it, the run's log file."""
