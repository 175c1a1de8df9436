"""The node program: what runs inside every node's container.

`hvdcloud-node VERB` speaks JSON, one line in and one line out (see `__main__`). Standard library, Google's storage
client and psutil only.
"""
