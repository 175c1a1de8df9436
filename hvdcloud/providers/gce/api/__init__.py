"""The Compute API as this provider uses it, and its answers in the words of the provider contract."""
