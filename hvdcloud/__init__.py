"""hvdcloud: from a training script on a laptop to N machines and back.

This module stays empty but for the version: the node program imports it inside the image, where
nothing but the standard library can be relied on.
"""

__version__ = "0.1.0"
