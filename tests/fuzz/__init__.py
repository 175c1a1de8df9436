"""Hostile input for everything that a node, a bucket, a registry or a cloned file can say: `make fuzz`."""
