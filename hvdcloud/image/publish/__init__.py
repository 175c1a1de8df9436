"""What happens to an image at its registry: push, digest, software bill of materials, scan."""
