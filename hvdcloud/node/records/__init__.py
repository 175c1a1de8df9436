"""What a node keeps of its runs: what was asked for, how far it is, and secrets."""
