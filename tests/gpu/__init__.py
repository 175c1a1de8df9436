"""What only a GPU can show: `make test-gpu`, and no part of `make test`."""
