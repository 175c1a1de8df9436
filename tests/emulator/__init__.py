"""A stateful stand-in of the Compute Engine API, for tests. See README.md."""

from __future__ import annotations

from tests.emulator.records import BootDelays, Records
from tests.emulator.server import Emulator
from tests.emulator.state import Delays

__all__ = ["BootDelays", "Delays", "Emulator", "Records"]
