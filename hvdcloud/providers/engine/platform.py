"""What containers on engines of the user's mean for a configuration: they cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdcloud.config.model import Config


class EnginePlatform:
    """The part of a `Platform` that does not depend on where the engines are."""

    costs_money = False
    processor: str | None = None
    unpacks_zstd = False

    def __init__(self, config: Config) -> None:
        self._config = config
