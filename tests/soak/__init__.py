"""One long elastic run, and all that may happen to its nodes, at random: `make soak`."""
