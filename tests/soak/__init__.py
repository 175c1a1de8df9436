"""One long elastic run, and whatever may happen to its nodes, at random: `make soak`."""
