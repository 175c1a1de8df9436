"""`hvdcloud offers`: the cluster that hvdcloud.yaml asks for, and others like it, with their prices."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.lifecycle.context import BRIEF_RETRY_SECONDS
from hvdcloud.providers.pricing import with_retries
from hvdcloud.visible import words

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.providers.base import Gpu
    from hvdcloud.providers.pricing import OffersResult
    from hvdcloud.runs.preemptions import Preemptions
    from hvdcloud.storage.threads import Outcome

OBSERVED_RUNS = 200
"""How many runs are read for how often Spot nodes are preempted: the newest."""
OBSERVE_SECONDS = 8.0
"""How long that may take."""


def offers(context: Context, *, hours: float, gpu: str | None, preempted_every: float | None) -> OffersResult:
    """What the provider offers. What its API cannot be asked about stays unknown; a notice says why.

    Args:
        hours: how long the cluster would exist.
        gpu: only nodes with this GPU.
        preempted_every: hours from one preemption to the next, for what retries cost; None: as the runs in the bucket
            have seen, else an assumption.

    Raises:
        UsageError: the machine type or a GPU is not in the catalogue.
    """
    from hvdcloud.image.plan import versions

    config, image = context.config, context.config.image
    # What image.base has code for, only the image knows.
    row = None if image.base else versions.find(image.framework, image.device, image.version)

    def image_problem(found: Gpu) -> str | None:
        try:
            if row is not None:
                versions.check_fits(row, gpu=found.name, capability=found.compute_capability)
        except UsageError as error:
            return error.hint
        return None

    found = context.platform.offers(hours=hours, gpu=gpu, image_problem=image_problem)
    own = [each for each in found.offers if each.configured and each.spot]
    known = [each.dollars_per_hour for each in own if each.dollars_per_hour is not None]
    if config.run.retry is None or "preempted" not in config.run.retry.on or not known:
        return found
    observed: Preemptions | None = None
    if preempted_every is None and config.checkpoints.bucket is not None:
        try:
            observed = _observed(context)
        except HvdcloudError as error:
            # Prices do not depend on it.
            notice = f"how often Spot nodes were preempted is not known: {words(error.message, most=120)}"
            found = replace(found, notices=(*found.notices, notice))
    retries = with_retries(
        known[0],
        hours=hours,
        spot_nodes=found.nodes - (own[0].spot_nodes == "workers"),
        preempted_every=preempted_every,
        observed=observed,
    )
    return replace(found, retries=retries)


def _observed(context: Context) -> Preemptions:
    """How often Spot nodes of the runs in the bucket were preempted.

    Raises HvdcloudError: it cannot be read, or not in time.
    """
    from hvdcloud.lifecycle.history import newest_states
    from hvdcloud.runs.preemptions import observed
    from hvdcloud.storage.base import BucketUnreachableError
    from hvdcloud.storage.threads import attempt

    def read(_: str) -> Preemptions:
        return observed(newest_states(context.bucket(retry_seconds=BRIEF_RETRY_SECONDS), most=OBSERVED_RUNS))

    ended: list[Outcome[str, Preemptions]] = []
    url = context.bucket_url
    # One that takes a connection and never answers would be waited for a minute.
    thread = threading.Thread(target=lambda: ended.append(attempt(url, read)), name="preemptions", daemon=True)
    with context.console.waiting("offers", f"reading from {url} how often Spot nodes were preempted"):
        thread.start()
        thread.join(OBSERVE_SECONDS)
    if not ended:
        hint = "hvdcloud offers --preempted-every HOURS does not ask it"
        raise BucketUnreachableError(f"{url} did not answer within {OBSERVE_SECONDS:g} s", hint=hint)
    if ended[0].error is not None:
        raise ended[0].error
    assert ended[0].result is not None
    return ended[0].result
