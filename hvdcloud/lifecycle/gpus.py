"""Whether the image can compute on the nodes' GPUs: asked before anything is built, and before anything costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.gce.money.catalog import Gpu


def check_gpus(config: Config) -> None:
    """Makes sure that the image has code for the nodes' GPUs.

    Raises:
        UsageError: it has none; the hint names the row of hvdcloud/image/plan/versions.py that has.
    """
    from hvdcloud.image.plan import versions

    image = config.image
    for gpu in (gpu_of(config), _gpu_of_head(config)):
        # What image.base has code for, only the image knows.
        if gpu is not None and image.base is None:
            row = versions.find(image.framework, image.device, image.version)
            versions.check_fits(row, gpu=gpu.name, capability=gpu.compute_capability)


def device_mismatch(config: Config) -> str | None:
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
    """The GPU of each node, but for a head of its own kind; None: it has none, or preflight will say what is wrong."""
    wanted = config.gce.gpu
    return _gpu(config, config.gce.machine_type, wanted.type if wanted else None, wanted.count if wanted else 0)


def _gpu_of_head(config: Config) -> Gpu | None:
    """The GPU that comes with `gce.head_machine_type`."""
    return _gpu(config, config.gce.head_machine_type, None, 0) if config.gce.head_machine_type else None


def _gpu(config: Config, machine_type: str, gpu_type: str | None, gpu_count: int) -> Gpu | None:
    if config.provider != "gce":
        return None
    from hvdcloud.providers.gce.money import catalog

    try:
        name, _ = catalog.gpus_of(machine_type, gpu_type, gpu_count)
        return catalog.gpu(name) if name else None
    except UsageError:
        return None


def head_drives_only(config: Config) -> bool:
    """Whether the head takes no ranks: it is a machine of its own kind without a GPU, and the other nodes have GPUs."""
    apart = config.provider == "gce" and config.gce.head_machine_type is not None and config.nodes > 1
    return apart and _gpu_of_head(config) is None and gpu_of(config) is not None


def machine_of(config: Config) -> str | None:
    """What the nodes are, in words; None where they are no machines of their own."""
    if config.provider != "gce":
        return None
    from hvdcloud.providers.gce.settings import kind_of, settings_of

    settings = settings_of(config.gce, config.limits, project="", ssh_source="")
    head, other = kind_of(settings, 0), kind_of(settings, 1)
    if config.nodes == 1 or head == other:
        return str(head)
    if settings.head_machine_type:
        return f"head {head}, workers {other}"
    return f"{head}, workers Spot"
