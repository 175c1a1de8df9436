"""Who makes nodes: `local` (containers on this machine's Docker engine) or `gce` (Compute Engine VMs)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdcloud.config import Config
    from hvdcloud.providers.base import Provider

# Name → module with a `connect(config)`; imported on use, since a provider's client library is slow to load.
_MODULES = {"local": "hvdcloud.providers.local", "gce": "hvdcloud.providers.gce"}


def connect(config: Config) -> Provider:
    """The provider that the configuration names, ready to use.

    Raises:
        NodeError: it does not answer (for local: no Docker engine runs).
        CredentialsError: there are no credentials for it.
    """
    provider: Provider = import_module(_MODULES[config.provider]).connect(config)
    return provider
