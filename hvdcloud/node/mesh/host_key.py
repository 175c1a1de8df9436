"""What is accepted as a node's host key, and as its name and address, wherever one is written to a file that ssh reads.

They come from inside nodes. Another line, another word or a comment in one of them would pin a key for other hosts.
"""

from __future__ import annotations

import re

from hvdcloud.errors import NodeError

# ssh-ed25519, then 51 bytes as base64: the kind and the 32 bytes of the key, each after its length (RFC 8709, 4).
_HOST_KEY = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-P][A-Za-z0-9+/]{42}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")


def is_host_key(text: object) -> bool:
    """Whether it is the public host key of a node, `ssh-ed25519 BASE64`, and nothing else."""
    return isinstance(text, str) and _HOST_KEY.fullmatch(text) is not None


def is_host(text: object) -> bool:
    """Whether it is a host's name or address, and nothing else."""
    return isinstance(text, str) and _HOST.fullmatch(text) is not None


def check_host_key(text: object, *, node: str) -> str:
    """The host key. Raises NodeError: it is none."""
    if not isinstance(text, str) or not is_host_key(text):
        raise NodeError(f"what node {node} gives as its host key is none", hint="hvdcloud down, then hvdcloud up again")
    return text
