"""What a cluster is: its nodes, what this machine remembers of it, what it costs."""
