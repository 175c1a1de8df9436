"""Checkpoints on their way from a node to the bucket."""
