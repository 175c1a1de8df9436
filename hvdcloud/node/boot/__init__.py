"""A node from its first process to its end: entrypoint, idleness, power off."""
