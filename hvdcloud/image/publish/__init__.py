"""What happens to an image at its registry: push, pull, and which digest it has there."""
