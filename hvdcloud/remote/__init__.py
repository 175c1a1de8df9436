"""Reaching the nodes: SSH with pinned host keys, and sending the project's code."""
