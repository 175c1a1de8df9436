"""What goes into an image, and the names that follow from it. Asks no engine."""
