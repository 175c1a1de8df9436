"""The program that `hvdcloud check` runs as every rank; alone in its folder, which is first on `sys.path`."""
