"""Nodes as containers on this machine's Docker engine, on a network of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.providers.local.provider import LocalProvider

if TYPE_CHECKING:
    from hvdcloud.config import Config

__all__ = ["LocalProvider", "connect"]


def connect(_: Config) -> LocalProvider:
    """The provider on the engine that `DOCKER_HOST` or the current context names.

    Raises:
        NodeError: no engine answers.
    """
    from hvdcloud import engine

    return LocalProvider(engine.connect())
