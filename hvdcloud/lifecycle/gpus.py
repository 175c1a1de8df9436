"""Whether the image can compute on the nodes' GPUs: asked before anything is built, and before anything costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError

if TYPE_CHECKING:
    from hvdcloud.config import Config
    from hvdcloud.providers.gce.catalog import Gpu


def check_gpus(config: Config) -> None:
    """Makes sure that the image has code for the nodes' GPUs.

    Raises:
        UsageError: it has none; the hint names the row of hvdcloud/image/versions.py that has.
    """
    from hvdcloud.image import versions

    image = config.image
    gpu = gpu_of(config)
    # What image.base has code for, only the image knows.
    if gpu is not None and image.base is None:
        row = versions.find(image.framework, image.device, image.version)
        versions.check_fits(row, gpu=gpu.name, capability=gpu.compute_capability)


def wasted(config: Config) -> str | None:
    """What is paid for, or waited for, and not used: GPUs without CUDA, or CUDA without GPUs. None: nothing is."""
    if config.provider != "gce":
        return None
    gpu = gpu_of(config)
    if config.image.device == "cpu" and gpu is not None:
        return (
            "image.device is cpu: the nodes' GPUs would be paid for and not used; "
            "image.device: cuda uses them, gce.gpu: null drops them"
        )
    if config.image.device == "cuda" and gpu is None:
        return "image.device is cuda, but the nodes have no GPU: gce.gpu adds one, image.device: cpu is a small image"
    return None


def gpu_of(config: Config) -> Gpu | None:
    """The GPU of each node; None: it has none, or there is something wrong with it that preflight will say."""
    if config.provider != "gce":
        return None
    from hvdcloud.providers.gce import catalog

    wanted = config.gce.gpu
    try:
        name, _ = catalog.gpus_of(
            config.gce.machine_type, wanted.type if wanted else None, wanted.count if wanted else 0
        )
        return catalog.gpu(name) if name else None
    except UsageError:
        return None
