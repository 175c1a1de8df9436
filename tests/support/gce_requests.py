"""What an `up` asks of Compute Engine, and the same with other settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from hvdcloud.providers.gce.settings import Settings
from tests.support import gce_samples

SPEC = dataclasses.replace(gce_samples.SPEC, id="a1b2c3")

SETTINGS = dataclasses.replace(gce_samples.SETTINGS, max_run_seconds=43200)


def settings(**changes: Any) -> Settings:
    """SETTINGS with other values."""
    return dataclasses.replace(SETTINGS, **changes)
