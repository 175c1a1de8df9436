"""Which image registries are Google's."""

from __future__ import annotations

import os
import re

GOOGLE_REGISTRIES_VARIABLE = "HVDCLOUD_GOOGLE_REGISTRIES"
"""More hosts, separated by commas, that take a Google access token: mirrors and proxies."""


def google_registry(host: str) -> bool:
    """Whether the registry takes a Google access token as password."""
    # The whole name: of `example.org#x.gcr.io`, a URL's host is example.org.
    if re.fullmatch(r"[a-z0-9-]+-docker\.pkg\.dev|([a-z0-9-]+\.)?gcr\.io", host):
        return True
    others = [name.strip() for name in os.environ.get(GOOGLE_REGISTRIES_VARIABLE, "").split(",")]
    return bool(host) and host in others


def registry_region(reference: str) -> str | None:
    """The region of an Artifact Registry that an image's name begins with; None: another one, or several regions."""
    found = re.match(r"([a-z]+-[a-z]+\d+)-docker\.pkg\.dev/", reference)
    return found[1] if found else None
