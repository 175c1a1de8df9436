"""What each host is asked before a node is made there: whether that is possible, and with which port and GPUs."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hvdcloud.checks import Finding, failure
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.errors import CapacityError, HvdcloudError, NodeError, UsageError
from hvdcloud.image.engine_stream import inspected
from hvdcloud.providers.engine.gpu_lock import assign_gpus
from hvdcloud.providers.engine.gpus import GpuShare
from hvdcloud.providers.engine.nodes import OURS, EngineNodes
from hvdcloud.providers.engine.requests import with_gpus
from hvdcloud.providers.ssh import images
from hvdcloud.providers.ssh.facts import Facts
from hvdcloud.providers.ssh.hosts import Host, Hosts
from hvdcloud.providers.ssh.requests import HostRequest, choose_port, node_request, taken_ports
from hvdcloud.units import size

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What an image calls the processor that an engine and uname call so."""


class Examiner:
    """Asks hosts, and plans what they are asked for."""

    def __init__(self, hosts: Hosts, *, idle_seconds: float | None, longest_seconds: float | None = None) -> None:
        self.hosts = hosts
        self._idle_seconds = idle_seconds
        self._longest_seconds = longest_seconds

    def problems_of(self, host: Host, spec: ClusterSpec, info: Mapping[str, Any], facts: Facts) -> Sequence[Finding]:
        """Why this host, whose engine and which itself said this, cannot have a node; the image is not looked at."""
        nodes = EngineNodes(host.api)
        found = [
            replace(problem, message=f"{host.name}: {problem.message}")
            for problem in nodes.names_taken(spec, range(spec.nodes))
        ]
        found += [failure(error) for error in unfit(host, info, None)]
        if facts.address is None:
            found.append(failure(_no_address(host)))
        try:
            self.gpus(host, facts)
        except HvdcloudError as error:
            found.append(failure(error))
        return found

    def requests(self, spec: ClusterSpec, placed: Mapping[int, Host]) -> Sequence[HostRequest]:
        """What is asked for to make these nodes on these hosts, as things are now.

        Raises HvdcloudError: of the first host that does not answer or lacks something; its details name the others.
        """
        index = {host.name: number for number, host in placed.items()}
        image = None if images.is_at_registry(spec.image) else images.image_here(spec.image)
        found = self.hosts.require(
            lambda host: self._request(spec, index[host.name], host, image), [*placed.values()], only_reads=True
        )
        return [*found.values()]

    def _request(self, spec: ClusterSpec, index: int, host: Host, image: Mapping[str, Any] | None) -> HostRequest:
        for error in unfit(host, host.api.info(), image):
            raise error
        facts = host.facts(ask_gpus=host.config.gpus is not None)
        if image is not None and (full := no_room(host, image, facts)) and not _has(host, spec.image, image):
            raise full
        if facts.address is None:
            raise _no_address(host)
        ours = [each["Labels"] or {} for each in host.api.containers(all=True, filters={"label": OURS})]
        request = node_request(
            spec,
            index,
            host=host.name,
            address=facts.address,
            port=choose_port(spec, index, taken_ports(facts.ports, ours), host=host.name),
            idle_seconds=self._idle_seconds,
            longest_seconds=self._longest_seconds,
        )
        share = self.gpus(host, facts).get(0)
        made = request if share is None else with_gpus(request, {index: share})
        assert isinstance(made, HostRequest)
        return made

    def gpus(self, host: Host, facts: Facts) -> Mapping[int, GpuShare]:
        """What the host's node gets, as node 0 of one; empty: it gets none. Raises as `assign_gpus`."""
        if host.config.gpus is None:
            return {}
        return assign_gpus(
            host.api,
            facts.found_gpus(host.name),
            host.config.gpus,
            nodes=1,
            indices=[0],
            hook=facts.hook,
            place=host.name,
        )


def unfit(host: Host, info: Mapping[str, Any], image: Mapping[str, Any] | None) -> Sequence[HvdcloudError]:
    """Why the host's engine cannot run a node of this image."""
    found: list[HvdcloudError] = []
    if any("rootless" in str(option) for option in info.get("SecurityOptions") or []):
        found.append(
            NodeError(
                f"the Docker engine of {host.name} is rootless, and its containers are not in the host's network",
                hint="let the system's engine run there, and this user use it: sudo usermod -aG docker USER",
            )
        )
    there = str(info.get("Architecture", ""))
    there = ARCHITECTURES.get(there, there)
    wanted = str((image or {}).get("Architecture") or ARCHITECTURES.get(platform.machine(), platform.machine()))
    if there and there != wanted:
        found.append(
            UsageError(
                f"{host.name} is {there}, and the image is for {wanted}",
                hint=f"take {host.name} out of ssh.hosts; or run hvdcloud on a machine that is {there}",
            )
        )
    return found


def no_room(host: Host, image: Mapping[str, Any], facts: Facts) -> HvdcloudError | None:
    """Too little disk for the image; how much of it is there already is not counted."""
    if facts.free_bytes is None or facts.free_bytes >= int(image.get("Size") or 0):
        return None
    return CapacityError(
        f"the disk of {host.name}'s Docker engine has {size(facts.free_bytes)} free, and the image may need "
        f"{size(int(image['Size']))}",
        hint=f"{host.by_hand('docker system df')} shows what uses it",
    )


def _has(host: Host, name: str, image: Mapping[str, Any]) -> bool:
    """Whether the host has the image."""
    found = inspected(host.api, name)
    return found is not None and images.same_image(image, found)


def _no_address(host: Host) -> HvdcloudError:
    return UsageError(
        f"{host.name} does not say at which IPv4 address other hosts reach it",
        hint=f"name it: ssh.hosts: {{host: {host.name}, address: …}}",
    )
