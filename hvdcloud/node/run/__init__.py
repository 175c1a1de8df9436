"""One run on the nodes: prepared, launched, supervised and ended."""
