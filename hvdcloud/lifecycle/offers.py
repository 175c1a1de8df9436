"""`hvdcloud offers`: the cluster that hvdcloud.yaml asks for, and others like it, with their prices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud import providers
from hvdcloud.errors import UsageError
from hvdcloud.providers.pricing import with_retries

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.base import Gpu
    from hvdcloud.providers.pricing import OffersResult


def offers(config: Config, *, hours: float, gpu: str | None, preempted_every: float) -> OffersResult:
    """What the provider offers. What its API cannot be asked about stays unknown; a notice says why.

    Args:
        hours: how long the cluster would exist.
        gpu: only nodes with this GPU.
        preempted_every: hours from one preemption to the next, which nobody knows, for what retries cost.

    Raises:
        UsageError: the machine type or a GPU is not in the catalogue.
    """
    from hvdcloud.image.plan import versions

    image = config.image
    # What image.base has code for, only the image knows.
    row = None if image.base else versions.find(image.framework, image.device, image.version)

    def image_problem(found: Gpu) -> str | None:
        try:
            if row is not None:
                versions.check_fits(row, gpu=found.name, capability=found.compute_capability)
        except UsageError as error:
            return error.hint
        return None

    found = providers.platform(config).offers(hours=hours, gpu=gpu, image_problem=image_problem)
    own = [each.dollars_per_hour for each in found.offers if each.configured and each.spot]
    known = [dollars for dollars in own if dollars is not None]
    if config.run.retry is None or "preempted" not in config.run.retry.on or not known:
        return found
    return replace(found, retries=with_retries(known[0], hours=hours, preempted_every=preempted_every))
