"""The image that nodes run: what goes into it, building it, pushing it."""
