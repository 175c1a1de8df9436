"""Nodes as containers on this machine's Docker engine, on a network of their own."""
