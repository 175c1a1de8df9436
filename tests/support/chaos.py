"""What can happen to a node of a local cluster in the middle of a run, and how each of it is undone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.cluster.model import LABEL_CLUSTER
from hvdcloud.providers.local.requests import network_name
from tests.support.harness import freeze

TRAINING = "^[^ ]*python[^ ]* (-u )?train[.]py"
"""Command lines of what ranks run, for pkill; the launcher's and the node program's begin with other words."""
AGENT = "hvdcloud[.]node agent"
NETWORK_DEVICES = Path("/sys/class/net")
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
CHECKPOINTS = "/var/lib/hvdcloud/checkpoints"

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One thing that can happen to a node."""

    name: str
    says: str
    """What happened to a node, in words that follow its name."""
    act: Callable[[Any, str], Undo]
    """Do it to a node of this name; what is returned undoes it, and does nothing where the node was replaced since."""
    takes_node: bool = True
    """Whether the whole node is gone, not just something that runs on it."""
    stays: bool = True
    """Whether it lasts until it is undone, or until the node is replaced."""
    loses_rank: bool = True
    """Whether the node's ranks stop training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A disturbance that was done to a node."""

    disturbance: Disturbance
    node: str
    at: float
    """Seconds since 1970, just before."""
    undo: Undo

    def __str__(self) -> str:
        return f"{self.node} {self.disturbance.says}"


def disturb(engine: Any, name: str, node: str) -> Happened:
    """Apply a disturbance to a node now."""
    disturbance = DISTURBANCES[name]
    at = time.time()
    return Happened(disturbance=disturbance, node=node, at=at, undo=disturbance.act(engine, node))


def container_of(engine: Any, container_id: str) -> Any | None:
    """A container by its id, or None if it is gone; another one of the same name is not it."""
    from docker.errors import NotFound

    try:
        return engine.containers.get(container_id)
    except NotFound:
        return None


def run_in(engine: Any, node: str, *argv: str) -> tuple[int, str]:
    """A command in a node's container: its exit code and output."""
    done = engine.containers.get(node).exec_run(list(argv))
    return int(done.exit_code), bytes(done.output or b"").decode(errors="replace")


def _started_again(engine: Any, container_id: str) -> Undo:
    def undo() -> None:
        container = container_of(engine, container_id)
        # The client that replaces the node may delete the container between any two of these calls.
        with _gone():
            if container is not None and container.status in ("exited", "created"):
                container.start()

    return undo


@contextlib.contextmanager
def _gone() -> Any:
    """A container that is deleted meanwhile, or has in another state already, is no failure."""
    from docker.errors import APIError

    try:
        yield
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


def _kill(engine: Any, node: str) -> Undo:
    container = engine.containers.get(node)
    container.kill()
    return _started_again(engine, container.id)


def _stop(engine: Any, node: str) -> Undo:
    container = engine.containers.get(node)
    container.stop(timeout=1)
    return _started_again(engine, container.id)


def _remove(engine: Any, node: str) -> Undo:
    engine.containers.get(node).remove(force=True, v=True)
    return _nothing


def _pause(engine: Any, node: str) -> Undo:
    container = engine.containers.get(node)
    freeze(container)

    def undo() -> None:
        found = container_of(engine, container.id)
        with _gone():
            if found is not None and found.status == "paused":
                found.unpause()

    return undo


def _unplug(engine: Any, node: str) -> Undo:
    """Take down the engine's end of the node's cable: packets go nowhere, and every address stays as it is."""
    container = engine.containers.get(node)
    cable = _cable(container)
    _set_up(cable, up=False)

    def undo() -> None:
        # The cable goes with its container.
        if (NETWORK_DEVICES / cable).exists():
            _set_up(cable, up=True)

    return undo


def _cable(container: Any) -> str:
    """The name of this machine's network device at whose other end is the container's eth0."""
    peer = bytes(container.exec_run(["cat", "/sys/class/net/eth0/iflink"]).output).decode().strip()
    return next(path.name for path in NETWORK_DEVICES.iterdir() if (path / "ifindex").read_text().strip() == peer)


def _set_up(device: str, *, up: bool) -> None:
    """`ip link set DEVICE up` or `down`, as in netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14s", device.encode(), 0, b"")
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        flags = struct.unpack("16sH14s", answer)[1]
        flags = flags | _IFF_UP if up else flags & ~_IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", device.encode(), flags, b""))


def _disconnect(engine: Any, node: str) -> Undo:
    container = engine.containers.get(node)
    name = network_name(container.labels[LABEL_CLUSTER])
    network = engine.networks.get(name)
    network.disconnect(container, force=True)

    def undo() -> None:
        found = container_of(engine, container.id)
        with _gone():
            if found is not None and name not in found.attrs["NetworkSettings"]["Networks"]:
                # As the provider connected it: by its host name, it is found by the others again. Its interface is eth1
                # now, which only a restart changes; no real machine does that.
                network.connect(found, aliases=[found.attrs["Config"]["Hostname"]])
                found.restart(timeout=1)

    return undo


def _end(pattern: str, *, exact: bool = False) -> Callable[[Any, str], Undo]:
    """Kill processes of a node, by their command lines, or by their program's name."""

    def act(engine: Any, node: str) -> Undo:
        code, output = run_in(engine, node, "pkill", "-KILL", "-x" if exact else "-f", pattern)
        assert code == 0, f"{node} has no process {pattern!r}: {output}"
        return _nothing

    return act


def _fill_disk(engine: Any, node: str) -> Undo:
    """The folder of the newest run's checkpoints becomes a disk of its own that has no byte left."""
    container = engine.containers.get(node)
    code, output = run_in(engine, node, "sh", "-c", f"ls -d {CHECKPOINTS}/*/ | tail -1")
    assert code == 0, output
    assert output.strip(), f"{node} has no run"
    folder = output.strip().rstrip("/")
    inside = _mounting(container.attrs["State"]["Pid"])
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
    container.exec_run(["sh", "-c", f"cat /dev/zero > {folder}/.filler"])

    def undo() -> None:
        found = container_of(engine, container.id)
        if found is not None and found.status == "running":
            subprocess.run([*_mounting(found.attrs["State"]["Pid"]), "umount", "--lazy", folder], check=False)

    return undo


def _mounting(process: int) -> list[str]:
    """Words before a command that mounts in a container."""
    return ["nsenter", "--target", str(process), "--mount", "--pid"]


def possible(engine: Any) -> list[str]:
    """The names of what this user can do to nodes, sorted: cables and disks need root on the engine's own machine."""
    here = os.geteuid() == 0 and engine.info()["Name"] == socket.gethostname()
    without = set() if here else {"network", "disk"}
    if shutil.which("nsenter") is None:
        without.add("disk")
    return sorted(DISTURBANCES.keys() - without)


def _nothing() -> None:
    """Nothing to undo: the effect ends by itself, or the node has to be replaced."""


DISTURBANCES = {
    each.name: each
    for each in (
        Disturbance(name="kill", says="was killed", act=_kill),
        Disturbance(name="stop", says="was stopped", act=_stop),
        Disturbance(name="remove", says="was deleted", act=_remove),
        Disturbance(name="pause", says="was frozen", act=_pause),
        Disturbance(name="network", says="was cut off from the network", act=_unplug),
        Disturbance(name="disconnect", says="was disconnected, later restarted", act=_disconnect),
        Disturbance(name="worker", says="lost its training process", act=_end(TRAINING), takes_node=False, stays=False),
        Disturbance(name="agent", says="lost its agent", act=_end(AGENT), takes_node=False, stays=False),
        Disturbance(name="sshd", says="lost its sshd", act=_end("sshd", exact=True), stays=True),
        Disturbance(name="disk", says="has a full disk", act=_fill_disk, takes_node=False, loses_rank=False),
    )
}
