"""Commands that wait for less time than they do for a user."""

from __future__ import annotations

from unittest.mock import patch

from hvdcloud.google import http
from hvdcloud.lifecycle import context
from hvdcloud.providers.gce.api.client import ComputeClient, connect_client
from hvdcloud.providers.gce.ops import create, flex_start, ready
from hvdcloud.remote import connection

NO_SSHD = f"{__name__}:expect_no_sshd"
"""For `Project.first`: the VMs are records, at whose addresses nobody answers."""
QUICK = f"{__name__}:be_quick"
"""For `Project.first`: likewise, and pauses before the Compute API is asked again take a tenth of the time."""
IMPATIENT = f"{__name__}:be_impatient"
"""For `Project.first`: likewise, and a client gives up after 1.5 s where it would after two minutes."""
NOTHING_LATE = f"{__name__}:expect_nothing_late"
"""For `Project.first`: as `NO_SSHD`, and what a killed `up` had asked for is there, or never comes."""
IMAGE_IS_THERE = f"{__name__}:find_an_image"
"""For `Project.first`: the project's image is at the registry, which is not asked."""


def expect_no_sshd() -> None:
    """A node that is ready is tried for a moment only."""
    connection.MOST_SECONDS = 1.0


def be_quick() -> None:
    """See `QUICK`."""
    expect_no_sshd()
    http.RETRY_BASE_SECONDS /= 10
    create.BACKOFF_SECONDS /= 10
    ready.LIST_SECONDS /= 10
    flex_start.POLL_SECONDS /= 10


def be_impatient() -> None:
    """Clients that this process makes from now on give up after 1.5 s."""
    be_quick()
    for function in (ComputeClient.__init__, connect_client):
        defaults = function.__kwdefaults__
        assert defaults is not None
        defaults["retry_seconds"] = 1.5


def expect_nothing_late() -> None:
    """`up` and `down` wait for a moment only."""
    expect_no_sshd()
    context.LATE_SECONDS = 0.5


def find_an_image() -> None:
    """`up` neither looks for an image nor builds one."""
    found = (f"us-central1-docker.pkg.dev/test-project/hvdcloud/digits@sha256:{'0' * 64}", True)
    patch("hvdcloud.lifecycle.up.find_image", lambda context: found).start()
