"""Data sets on a node: fetched once, verified, and there whole or not at all."""
