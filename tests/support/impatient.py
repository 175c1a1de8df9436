"""A client of the Compute API that gives up after 1.5 s where it would after two minutes."""

from __future__ import annotations

from hvdcloud.providers.gce.api.client import ComputeClient

IMPATIENT = f"{__name__}:be_impatient"
"""For `Project.first`."""


def be_impatient() -> None:
    """Every client that this process makes from now on gives up so soon."""
    defaults = ComputeClient.__init__.__kwdefaults__
    assert defaults is not None
    defaults["retry_seconds"] = 1.5
