"""What a run is: its command line, its progress, its log, what is kept of it."""
