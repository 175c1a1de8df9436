"""A flex-start request from the queue to its VMs: https://docs.cloud.google.com/compute/docs/instances/about-flex-start-vms."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hvdcloud.errors import CapacityError, UsageError
from hvdcloud.google.error_rules import Action
from hvdcloud.google.errors import ApiError, operation_errors
from hvdcloud.json_values import mapping
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.inventory import ACTIVE
from hvdcloud.providers.gce.ops import AbortedError

WAIT_SECONDS = 7200.0
"""Where `--wait` says nothing else."""
POLL_SECONDS = 10.0


def follow(
    client: ComputeClient,
    zone: str,
    name: str,
    *,
    until: float,
    stop: threading.Event,
    report: Callable[[str], None],
) -> ApiError | None:
    """Wait until the resize request `name` of the group of the same name has made its VMs.

    Args:
        until: of time.monotonic(): when to give up.
        stop: give up at once when it is set.
        report: called with a line for people at every look.

    Returns why Compute Engine refuses it, when another zone may do; None: its VMs are there.

    Raises:
        CapacityError: it has waited long enough.  UsageError: somebody else has ended it.
        ApiError: it cannot be looked at.  AbortedError: `stop` is set.
    """
    began, state, said = time.monotonic(), ACTIVE[0], ""
    while True:
        try:
            found = [each for each in client.resize_requests(zone, name) if each["name"] == name]
        except ApiError as error:
            # It waits on without us; a laptop that has slept has no network yet.
            if error.action is not Action.RETRY:
                raise
            said = f", {error.label} when it was last looked at"
        else:
            state = str(found[0].get("state")) if found else "gone"
            status = mapping(found[0].get("status")) if found else {}
            if state == "SUCCEEDED":
                return None
            if state == "FAILED":
                unknown = ApiError(message=f"the flex-start request in {zone} failed", project=client.project)
                return next(iter(operation_errors({**status, "selfLink": found[0].get("selfLink")})), unknown)
            if state not in ACTIVE:
                message = f"the flex-start request {name} in {zone} is {state.lower()}: somebody else has ended it"
                raise UsageError(message, hint="hvdcloud up asks again")
            errors = operation_errors(mapping(status.get("lastAttempt")))
            said = f", last answer {errors[0].metric or errors[0].label}" if errors else ""
        now = time.monotonic()
        minutes = int((now - began) // 60)
        if now >= until:
            message = f"there was no room in {zone} within {minutes} min: its flex-start request is {state}{said}"
            raise CapacityError(message, hint="--wait 6h waits longer; or name other zones in gce.zones")
        report(f"flex-start request {state}, waits for {minutes} min{said}")
        if stop.wait(min(POLL_SECONDS, until - now)):
            raise AbortedError
