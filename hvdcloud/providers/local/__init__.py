"""Nodes as containers on this machine's Docker engine, on a network of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdcloud.providers.local.provider import LocalProvider

if TYPE_CHECKING:
    from hvdcloud.config.model import Config

__all__ = ["LocalProvider", "connect"]


def connect(config: Config, *, on_retry: Callable[[str], None]) -> LocalProvider:
    """The provider on the engine that `DOCKER_HOST` or the current context names.

    Args:
        on_retry: never called.

    Raises:
        NodeError: no engine answers.
    """
    from hvdcloud import engine

    return LocalProvider(engine.connect(), idle_seconds=config.limits.idle)
