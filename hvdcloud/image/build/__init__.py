"""Building an image in a Docker engine, by BuildKit or by the classic builder."""
