"""A node from its first process to its end: entrypoint, activity, idleness."""
