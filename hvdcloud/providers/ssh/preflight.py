"""What each host is asked before a node is made there: whether that is possible, and with which GPUs."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.image.plan.steps import ARCHITECTURES
from hvdcloud.providers.engine.facts import Facts
from hvdcloud.providers.engine.gpus import GpuShare, assign_gpus
from hvdcloud.providers.ssh.connection import Host


def fit(host: Host) -> Facts:
    """What a host says of itself. Raises HvdcloudError: it cannot have a node."""
    refuse_unfit(host.name, host.api.info())
    facts = host.facts()
    if facts.address is None:
        raise UsageError(
            f"{host.name} does not say at which IPv4 address other hosts reach it",
            hint=f"name it: ssh.hosts: {{host: {host.name}, address: …}}",
        )
    return facts


def gpus_of(host: Host, facts: Facts) -> GpuShare | None:
    """What the host's node gets; None: nothing. Raises as `assign_gpus`."""
    if host.config.gpus is None:
        return None
    found, place = facts.found_gpus(host.name), host.name
    return assign_gpus(host.api, found, host.config.gpus, hook=facts.hook, nodes=1, indices=[0], place=place)[0]


def refuse_unfit(host: str, info: Mapping[str, Any]) -> None:
    """Raise HvdcloudError if the host's engine, by its `docker info`, cannot run a node of an image of this machine."""
    if any("rootless" in str(option) for option in info.get("SecurityOptions") or []):
        raise NodeError(
            f"the Docker engine of {host} is rootless, and its containers are not in the host's network",
            hint="let the system's engine run there, and this user use it: sudo usermod -aG docker USER",
        )
    there = str(info.get("Architecture", ""))
    there = ARCHITECTURES.get(there, there)
    wanted = ARCHITECTURES.get(platform.machine(), platform.machine())
    if there and there != wanted:
        raise UsageError(
            f"{host} is {there}, and the image is for {wanted}",
            hint=f"take {host} out of ssh.hosts; or run hvdcloud on a machine that is {there}",
        )
