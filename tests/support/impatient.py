"""Commands that wait for less time than they do for a user."""

from __future__ import annotations

from hvdcloud.lifecycle import late_arrival
from hvdcloud.providers.gce.api.client import ComputeClient

IMPATIENT = f"{__name__}:be_impatient"
"""For `Project.first`: a client of the Compute API gives up after 1.5 s where it would after two minutes."""
NOTHING_LATE = f"{__name__}:expect_nothing_late"
"""For `Project.first`: what a killed `up` had asked for is there, or never comes."""


def be_impatient() -> None:
    """Every client that this process makes from now on gives up so soon."""
    defaults = ComputeClient.__init__.__kwdefaults__
    assert defaults is not None
    defaults["retry_seconds"] = 1.5


def expect_nothing_late() -> None:
    """`up` and `down` wait for a moment only."""
    late_arrival.LATE_SECONDS = 0.5
