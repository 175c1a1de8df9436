"""A node from its first process to its end: entrypoint, machine, idleness, power off."""
