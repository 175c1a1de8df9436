"""Who makes nodes: `local` (containers on this machine's Docker engine) or `gce` (Compute Engine VMs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdcloud.checks import Check
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config
    from hvdcloud.providers.base import Provider

# Name → module with a `connect`; imported on use, since a provider's client library is slow to load.
_MODULES = {"local": "hvdcloud.providers.local", "gce": "hvdcloud.providers.gce"}


def connect(config: Config, *, on_retry: Callable[[str], None]) -> Provider:
    """The provider that the configuration names, ready to use.

    Args:
        on_retry: called with a line for people when a request is about to be sent again; from any thread.

    Raises:
        NodeError: it does not answer (for local: no Docker engine runs).
        CredentialsError: there are no credentials for it.
    """
    provider: Provider = import_module(_MODULES[config.provider]).connect(config, on_retry=on_retry)
    return provider


def checks(config: Config, spec: ClusterSpec) -> Sequence[Check]:
    """What `hvdcloud doctor` is to look at before this provider makes `spec`; nothing is asked yet."""
    found: Sequence[Check] = import_module(f"{_MODULES[config.provider]}.checks").checks(config, spec)
    return found
