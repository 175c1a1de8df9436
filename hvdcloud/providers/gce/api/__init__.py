"""The Compute API as this provider uses it."""
