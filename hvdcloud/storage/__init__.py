"""Objects in a bucket: one interface, `file://` and `gs://` behind it. Knows nothing about checkpoints."""
