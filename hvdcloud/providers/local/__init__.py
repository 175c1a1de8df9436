"""Nodes as containers on this machine's Docker engine, on a network of their own."""

from hvdcloud.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
