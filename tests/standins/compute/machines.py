"""The backing whose instances are machines: containers with a Docker of their own that boot the real startup script."""

from __future__ import annotations

import ipaddress
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.standins.compute.backing import BackingHost, Instance, zone_of
from tests.standins.compute.machines_container import Machine, Site
from tests.standins.compute.machines_firewall import iptables_text
from tests.standins.compute.machines_image import machine_image
from tests.standins.compute.machines_metadata import Guest, MetadataServer
from tests.support.leftovers import remove_labelled

LABEL = "hvdcloud-emulator"
OWNER_LABEL = "hvdcloud-emulator-owner"
SUBNET_SECONDS = 60.0
"""For the engine to have a free subnet."""


class Machines:
    """A `Backing` on the Docker engine of this machine, which must be a Linux engine without a VM of its own.

    Everything it makes has the label `hvdcloud-emulator=NETWORK`. What killed emulators left is removed first.

    Args:
        loopback_ports: ports of this machine that every emulated one has at 127.0.0.1 too, such as a registry's, so
            that `127.0.0.1:PORT/image` means the same on both. Servers there listen on `gateway` (or 0.0.0.0).
        client: docker-py's; default: of the engine that the environment names.
        lent_layers: new machines have the layers of their images on their disks (machines_layers.py), save in
            `empty_disks`; default: no, as in the cloud.
        lent_images: names of images that every machine has from the start, each in a repository of its own.
        ssh_key: a public key; the machines are not VMs of a cloud, but a user's own, which it opens.

    Attributes:
        network: name of the network of all machines.
        subnet: its addresses, CIDR.
        gateway: this machine's address in it: where machines see it call from.

    Raises:
        docker.errors.DockerException: no engine answers, or the image can't be built.
        OSError: the engine's networks are not this machine's.
    """

    def __init__(
        self,
        *,
        loopback_ports: Sequence[int] = (),
        client: Any = None,
        lent_layers: bool = False,
        lent_images: Sequence[str] = (),
        ssh_key: str = "",
    ) -> None:
        import docker

        self._client = client or docker.from_env(timeout=300)
        remove_leftovers(self._client)
        self.network = f"hvdcloud-emulator-{secrets.token_hex(4)}"
        # The owner: what a killed process leaves is removed by the next one.
        labels = {LABEL: self.network, OWNER_LABEL: _identity(os.getpid())}
        image = machine_image(self._client)
        self._network, subnet = _make_network(self._client, self.network, labels)
        self.subnet, self.gateway = str(subnet), str(subnet[1])
        self._addresses = itertools.cycle(str(address) for address in itertools.islice(subnet.hosts(), 1, 4000))
        self._cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
        self._lent_layers = lent_layers
        self._is_empty: Callable[[str], bool] = _never
        self._machines: dict[str, Machine] = {}
        self._rules: Sequence[Mapping[str, Any]] = ()
        self._lock = threading.Lock()
        try:
            self._metadata = MetadataServer(self.gateway, self._guest)
        except OSError:
            self._network.remove()
            raise
        environment = {
            "GATEWAY": self.gateway,
            "METADATA_PORT": str(self._metadata.port),
            "LOOPBACK_PORTS": " ".join(str(port) for port in loopback_ports),
            "DRIVER_SECONDS": "0.5",
            "SSH_KEY": ssh_key,
        }
        self._site = Site(self._client, image, self.network, labels, environment, lent_images)

    def address(self, instance: Instance) -> tuple[str, str | None]:
        """A free address of the network; the external one is the same, because this machine reaches it."""
        address = self._machine(instance).address
        external = any(interface.get("accessConfigs") for interface in instance["networkInterfaces"][:1])
        return address, address if external else None

    def start(self, instance: Instance, host: BackingHost) -> None:
        """See `Backing`. The fault plan's `hang_ready` and `fail_ready` are for `Records`."""
        if fault := host.fault(str(instance["name"])):
            raise NotImplementedError(f"{fault} of a machine")
        self._machine(instance).start(instance, host, started=self._enforce)

    def stop(self, instance: Instance, *, graceful_seconds: float) -> None:
        """Returns when it is off. It has this time to run its shutdown-script and end its containers."""
        self._machine(instance).stop(graceful_seconds=graceful_seconds).result()

    def delete(self, instance: Instance) -> None:
        """Returns when container and volume are gone."""
        machine = self._machine(instance)
        machine.remove().result()
        machine.close()
        with self._lock:
            del self._machines[str(instance["id"])]

    def firewalls_changed(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """In force on every running machine when it returns."""
        self._rules = tuple(rules)
        self._enforce()

    @contextmanager
    def empty_disks(self, *names: str) -> Iterator[None]:
        """Machines of these names, or all, that are made in the block pull every layer of their images."""
        self._is_empty = lambda name: not names or name in names
        try:
            yield
        finally:
            self._is_empty = _never

    def close(self) -> None:
        """Pull the plug of all machines; nothing with the label is left when it returns."""
        machines = self._all()
        for machine in machines:
            machine.unplug()
        removals = [machine.remove() for machine in machines]
        for machine in machines:
            machine.close()
        self._metadata.close()
        for removal in removals:
            removal.result()
        self._network.remove()

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self) -> list[Machine]:
        with self._lock:
            return list(self._machines.values())

    def _machine(self, instance: Instance) -> Machine:
        with self._lock:
            key = str(instance["id"])
            if key not in self._machines:
                used = {machine.address for machine in self._machines.values()}
                address = next(free for free in self._addresses if free not in used)
                self._machines[key] = Machine(
                    self._site,
                    instance,
                    zone=zone_of(instance),
                    address=address,
                    core=next(self._cores),
                    lent_layers=self._lent_layers and not self._is_empty(str(instance["name"])),
                )
            return self._machines[key]

    def _guest(self, address: str) -> Guest | None:
        for machine in self._all():
            if machine.address == address and machine.host:
                return Guest(name=str(machine.instance["name"]), address=address, host=machine.host)
        return None

    def _enforce(self) -> None:
        machines = self._all()

        def text(machine: Machine) -> str:
            members = [(member.current(), member.address) for member in self._all()]
            return iptables_text(machine.current(), rules=self._rules, members=members)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda machine: machine.enforce(lambda: text(machine)), machines))


def _never(_: str) -> bool:
    return False


def remove_leftovers(client: Any) -> None:
    """Remove what emulators left whose process is gone; `client`: docker-py's."""

    def is_alive(labels: Mapping[str, str]) -> bool:
        owner = labels[OWNER_LABEL]
        return _identity(int(owner.partition(":")[0])) == owner

    remove_labelled(client, OWNER_LABEL, unless=is_alive)


def _identity(pid: int) -> str:
    """PID and start time of a process; no start time if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid}:"
    # Fields after the command's name, which may have spaces: the 22nd of proc(5) is the start time.
    return f"{pid}:{stat.rpartition(')')[2].split()[19]}"


def _make_network(client: Any, name: str, labels: Mapping[str, str]) -> tuple[Any, ipaddress.IPv4Network]:
    """A bridge network with a subnet that the engine chose, but that counts as given: only then can addresses be."""
    from docker.errors import APIError
    from docker.types import IPAMConfig, IPAMPool

    deadline = time.monotonic() + SUBNET_SECONDS
    while True:
        try:
            probe = client.networks.create(f"{name}-probe", driver="bridge", labels=dict(labels))
            try:
                probe.reload()
                subnet = ipaddress.IPv4Network(probe.attrs["IPAM"]["Config"][0]["Subnet"])
            finally:
                probe.remove()
            pool = IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))])
            return client.networks.create(name, driver="bridge", labels=dict(labels), ipam=pool), subnet
        except APIError as error:
            # Another process was faster, or holds all of them for a moment.
            passing = "overlaps" in str(error) or "address pool" in str(error)
            if not passing or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
