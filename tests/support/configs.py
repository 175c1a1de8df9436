"""hvdcloud.yaml as its values alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hvdcloud.config.file import load
from hvdcloud.config.model import Config


def load_config(
    path: Path | None = None, *, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration of one experiment; arguments and errors as `load`."""
    return load(path, flags=flags, environ=environ).config
