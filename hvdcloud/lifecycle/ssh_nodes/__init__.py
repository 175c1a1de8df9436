"""What only nodes on machines of the user's need, which have a bucket each."""
