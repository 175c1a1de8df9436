"""Whether the image can compute on the nodes' GPUs: asked before anything is built, and before anything costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud import providers

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.image.plan.custom_base import Needs


def check_gpus(config: Config) -> None:
    """Makes sure that the image has code for the nodes' GPUs.

    Raises UsageError: it has none; the hint names the row of hvdcloud/image/plan/versions.py that has.
    """
    from hvdcloud.image.plan import versions

    image, platform = config.image, providers.platform(config)
    # What image.base has code for, only the image knows.
    if (gpu := platform.gpu()) is not None and image.base is None:
        row = versions.find(image.framework, image.device, image.version)
        versions.check_fits(row, gpu=gpu.name, capability=gpu.compute_capability)


def needs_of(config: Config) -> Needs:
    """What an image of the user's own has to be able to do for this configuration."""
    from hvdcloud.image.plan.custom_base import Needs

    gpu = providers.platform(config).gpu() if config.image.device == "cuda" else None
    return Needs(controller=config.run.controller, capability=gpu.compute_capability if gpu else "")
