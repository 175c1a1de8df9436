"""Compute Engine: nodes are VMs."""

from hvdcloud.providers.gce.provider import GceProvider

__all__ = ["GceProvider"]
