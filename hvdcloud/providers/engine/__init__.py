"""Nodes as containers on a Docker engine: what the providers have in common whose nodes are that."""
