"""The metadata server of a VM, as nodes see it."""
