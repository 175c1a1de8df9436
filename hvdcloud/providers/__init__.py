"""Who makes nodes: `local` (containers on this machine's Docker engine)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError

if TYPE_CHECKING:
    from hvdcloud.providers.base import Provider

# Name → module with a `connect()`; imported on use, since a provider's client library is slow to load.
_MODULES = {"local": "hvdcloud.providers.local"}


def connect(name: str) -> Provider:
    """The provider of that name, ready to use.

    Raises:
        UsageError: there is no such provider.
        NodeError: it does not answer (for local: no Docker engine runs).
    """
    if name not in _MODULES:
        raise UsageError(f"provider {name!r} is not available", hint=f"set provider to one of: {', '.join(_MODULES)}")
    provider: Provider = import_module(_MODULES[name]).connect()
    return provider
