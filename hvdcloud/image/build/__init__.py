"""Building an image in a Docker engine, by its BuildKit."""
