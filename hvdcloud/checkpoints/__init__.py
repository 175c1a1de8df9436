"""Checkpoints on their way from a node to a bucket and from the bucket to a verified file on disk.

bucket.py is the interface; folder.py (`file://`) and gcs.py (`gs://`) are the two backends. manifest.py says what
a node has uploaded, pull.py brings it to this disk, ledger.py remembers what was verified here, and verify.py says
what is still missing. Standard library and google_crc32c only, apart from gcs.py: this package is in the image too.
"""
