"""A stateful stand-in of the Compute Engine API, for tests. See README.md."""

from __future__ import annotations

from tests.standins.compute.records import BootDelays, Records
from tests.standins.compute.server import Emulator
from tests.standins.compute.state import Delays

__all__ = ["BootDelays", "Delays", "Emulator", "Records"]
