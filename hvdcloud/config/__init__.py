"""hvdcloud.yaml: its models, how it is read, how single keys in it are changed."""
