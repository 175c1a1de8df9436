"""Which image registries are Google's."""

from __future__ import annotations

import os

GOOGLE_REGISTRIES_VARIABLE = "HVDCLOUD_GOOGLE_REGISTRIES"
"""More hosts, separated by commas, that take a Google access token: mirrors and proxies."""


def google_registry(host: str) -> bool:
    """Whether the registry takes a Google access token as password."""
    others = [name.strip() for name in os.environ.get(GOOGLE_REGISTRIES_VARIABLE, "").split(",")]
    return host == "gcr.io" or host.endswith(("-docker.pkg.dev", ".gcr.io")) or (bool(host) and host in others)
