"""One static HTML page of a run, or of several side by side, made of what they left on disk. Reads only."""
