"""Machines of a user's that are reached by SSH: the emulator's, each with an engine and an sshd of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.remote.keys import KeyPair, new_key_pair, write_key_pair
from tests.standins.compute.backing import Instance
from tests.standins.compute.machines import Machines
from tests.support.harness import until

PROJECT, ZONE = "p-1", "us-central1-a"
_BOOT_SECONDS = 60
_CONFIG = """\
Host *
    User root
    IdentityFile {key}
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile none
"""
_IMPATIENT = "-oConnectTimeout=5 -oServerAliveInterval=4"
"""Before the options that hvdcloud gives, so that these count: a host that is off is in the same machine here."""


class Records:
    """`BackingHost` of machines that are not VMs: records their consoles."""

    project, project_number, zone = PROJECT, "42", ZONE

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.console: dict[str, str] = defaultdict(str)
        self._lock = threading.Lock()

    def serial(self, name: str, text: str) -> None:
        with self._lock:
            self.console[name] += text

    def guest_attribute(self, name: str, namespace: str, key: str, value: str) -> None:
        raise PermissionError(name)

    def powered_off(self, name: str) -> None:
        """Not recorded: no test asks for it."""

    def instance(self, name: str) -> Instance | None:
        return self.instances.get(name)

    def preempted(self, name: str) -> bool:
        return False

    def fault(self, name: str) -> dict[str, Any]:
        return {}

    def access_token(self, name: str) -> tuple[str, float]:
        raise LookupError(f"{name} has no service account")


def _instance(name: str, *, number: int, image: str) -> Instance:
    """An `Instance` with the fields that `Machines` reads."""
    zone = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    return {
        "id": str(number),
        "name": name,
        "zone": zone,
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": [{"key": "hvdcloud-image", "value": image}]},
    }


@dataclass
class SshHost:
    """One machine.

    Attributes:
        name: as ~/.ssh/config has it.
        container: the machine itself, at this machine's engine.
        instance: what it was booted from.
    """

    name: str
    address: str
    container: Any
    instance: Instance

    def run(self, *command: str) -> str:
        """What a command prints that root runs there; fails the test if it fails."""
        code, output = self.container.exec_run(list(command))
        text = str(output.decode(errors="replace"))
        assert code == 0, f"{command} on {self.name}: {text}"
        return text

    def containers(self, *filters: str) -> list[str]:
        """`docker ps` there, names only, stopped ones too."""
        words = [word for each in filters for word in ("--filter", each)]
        listing = ["docker", "ps", "-a", "--format", "{{.Names}}", *words]
        # A busy engine may lose what a program has printed that ends at once.
        while (found := self.run("sh", "-c", '"$@" && echo end-of-list', "sh", *listing).split())[-1:] != [
            "end-of-list"
        ]:
            time.sleep(0.1)
        return found[:-1]

    def docker(self, *words: str) -> str:
        """`docker` there."""
        return self.run("docker", *words)


@dataclass
class SshHosts:
    """All of them, and the folder of a user who reaches them.

    Attributes:
        path: for the environment's PATH: `ssh` there has this user's configuration and known_hosts.
        gateway: this machine's address as they see it.
        image: every machine has its layers, but not the image; "": none.
        engine: docker-py's client of this machine's engine.
    """

    machines: Machines
    folder: Path
    key: KeyPair
    image: str
    engine: Any
    hosts: list[SshHost] = field(default_factory=list)
    records: Records = field(default_factory=Records)

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    @property
    def gateway(self) -> str:
        return self.machines.gateway

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def config(self) -> Path:
        return self.folder / "config"

    def __getitem__(self, name: str) -> SshHost:
        return next(host for host in self.hosts if host.name == name)

    def boot(self, *names: str) -> Sequence[SshHost]:
        """Start machines, and wait until they can be reached; known_hosts has their keys then."""
        first = len(self.hosts)
        for number, name in enumerate(names, start=first):
            instance = _instance(name, number=number, image=self.image)
            self.machines.address(instance)
            self.records.instances[name] = instance
            self.machines.start(instance, self.records)
        for name in names:
            until(
                partial(self._is_up, name),
                what=f"{name} to be up",
            )
            booted = self.records.instances[name]
            address = self.machines.address(booted)[0]
            container = self.engine.containers.get(f"{self.machines.network}-{self.records.zone}-{name}")
            self.hosts.append(SshHost(name=name, address=address, container=container, instance=booted))
        self.write_files()
        return self.hosts[first:]

    def _is_up(self, name: str) -> bool:
        return "SSH is up" in self.records.console[name]

    def power_off(self, name: str) -> None:
        """Pull the plug of a machine; its disk stays."""
        self.machines.stop(self[name].instance, graceful_seconds=0)

    def power_on(self, name: str) -> None:
        """Boot a machine that is off, and wait until it can be reached."""
        boots = self.records.console[name].count("SSH is up")
        self.machines.start(self[name].instance, self.records)
        until(lambda: self.records.console[name].count("SSH is up") > boots, what=f"{name} to be up")

    def write_files(self) -> None:
        """~/.ssh/config and known_hosts of the user."""
        known, blocks = [], []
        for host in self.hosts:
            # On a busy machine the engine sometimes loses what so short a command says.
            said = until(partial(host.run, "cat", "/etc/ssh/ssh_host_ed25519_key.pub"), what="its host key")
            known.append(f"{host.name},{host.address} {' '.join(said.split()[:2])}\n")
            blocks.append(f"Host {host.name}\n    HostName {host.address}\n    HostKeyAlias {host.name}\n")
        self.known_hosts.write_text("".join(known))
        common = _CONFIG.format(key=self.folder / "id_ed25519", known_hosts=self.known_hosts)
        self.config.write_text("".join([*blocks, common]))

    def left(self, cluster: str = "") -> list[str]:
        """What is left of a cluster on the hosts; of any, where none is named."""
        label = f"label=hvdcloud-cluster={cluster}" if cluster else "label=managed-by=hvdcloud"
        return [f"{name} on {host.name}" for host in self.hosts for name in host.containers(label)]


@contextmanager
def ssh_hosts(
    folder: Path, *names: str, image: str = "", images: Sequence[str] = (), loopback_ports: Sequence[int] = ()
) -> Iterator[SshHosts]:
    """These machines for the block.

    Args:
        folder: for the user's files.
        image: of this machine's engine; each machine has its layers, but not the image.
        images: of this machine's engine; each machine has them, as for `Machines`.
        loopback_ports: as for `Machines`.
    """
    import docker

    program = shutil.which("ssh")
    if program is None:
        pytest.skip("there is no ssh on this machine")
    key = new_key_pair(f"test-{secrets.token_hex(2)}")
    write_key_pair(folder / "id_ed25519", key)
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "ssh"
    # OpenSSH finds ~ by the user's entry in passwd, not by HOME.
    wrapper.write_text(f'#!/bin/sh\nexec {program} -F {folder / "config"} {_IMPATIENT} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    with (
        contextlib.closing(docker.from_env(timeout=300)) as engine,
        Machines(
            ssh_key=key.public,
            lent_layers=bool(image),
            lent_images=images,
            client=engine,
            loopback_ports=loopback_ports,
        ) as machines,
    ):
        found = SshHosts(machines=machines, folder=folder, key=key, image=image, engine=engine)
        found.boot(*names)
        yield found
