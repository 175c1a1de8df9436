"""Which nodes of a cluster are slow or broken: what `hvdcloud check` measures, and what follows from it."""
