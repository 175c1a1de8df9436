"""The node program: what runs inside every node's container.

`hvdcloud-node VERB` speaks JSON, one line in and one line out (see `__main__`). Standard library only, but for the
bucket's client, which is imported where it is needed: every verb starts in a few tens of milliseconds.
"""
