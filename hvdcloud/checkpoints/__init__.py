"""Checkpoints between a bucket and verified files on disk.

manifest.py says what a node has uploaded, pull.py brings it to this disk, and verified_files.py remembers what was
verified here, and says what is still missing. Standard library and google_crc32c only: nodes use this package too.
"""
