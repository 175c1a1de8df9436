"""Images that take long to build or need something of NVIDIA's: `make test-images`, and no part of `make test`."""
