"""What `hvdcloud check` measures: each node alone, and all-reduces between nodes."""
