"""From hvdcloud.yaml's sections to what is the same for every cluster of one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.providers.gce.plan import Settings

if TYPE_CHECKING:
    from hvdcloud.config import GceConfig, LimitsConfig


def settings_of(config: GceConfig, limits: LimitsConfig, *, project: str, ssh_source: str) -> Settings:
    """
    Args:
        project: where the VMs are to be.
        ssh_source: as `reach.caller_source` found it.
    """
    gpu = config.gpu
    return Settings(
        project=project,
        machine_type=config.machine_type,
        gpu_type=gpu.type if gpu else None,
        gpu_count=gpu.count if gpu else 0,
        spot=config.spot,
        disk_gb=config.disk_gb,
        vm_image_profile=config.vm_image,
        network=config.network,
        subnetwork=config.subnetwork,
        service_account=config.service_account,
        ssh_source=ssh_source,
        max_run_seconds=int(limits.max_run_duration),
        max_cost=limits.max_cost,
        idle_seconds=limits.idle,
        endpoint=config.endpoint,
    )
