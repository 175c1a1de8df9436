"""One run on the nodes: prepared, supervised and ended."""
