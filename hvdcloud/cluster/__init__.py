"""What a cluster is, for everything above the providers: its record on this machine, its keys, its cost."""
