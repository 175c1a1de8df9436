"""Hostile input for everything that a node, a bucket or a cloned file can say: `make fuzz`."""
