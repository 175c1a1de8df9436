"""Nodes as containers on machines that the user reaches by SSH, one on each, with the machine's own network."""
