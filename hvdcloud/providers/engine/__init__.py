"""What nodes that are containers have in common, whichever engine they are on."""
