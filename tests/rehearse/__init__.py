"""The cloud part of the README, on this machine: `make rehearse`."""
