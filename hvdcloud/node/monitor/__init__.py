"""What a node measures of itself, and the snapshot of it that `hvdcloud top` reads."""
