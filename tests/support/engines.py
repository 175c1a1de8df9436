"""A second Docker engine on this machine: nothing built, nothing pulled, and a network of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.providers.ssh.images import same_image
from tests.support.harness import until


@dataclass(frozen=True)
class SecondEngine:
    """An engine that can build without a network, and pull from this machine."""

    docker_host: str
    """For DOCKER_HOST."""
    gateway: str
    """This machine's address as the engine sees it."""
    folder: Path
    """Where its data and its log are."""


def same_image_on_both(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether two engines have one image, by its id where both take that of its configuration.

    Args:
        here, there: what they say of it. With containerd's store its id is a digest by which a registry may know it.
    """
    by_manifest = any(
        digest.endswith(f"@{found['Id']}") for found in (here, there) for digest in found.get("RepoDigests") or ()
    )
    return here["Id"] == there["Id"] or (by_manifest and same_image(here, there))


@contextmanager
def second_engine(
    *,
    disk_mb: int | None = None,
    options: Sequence[str] = (),
    programs: Path | None = None,
    bridge: bool = False,
) -> Iterator[SecondEngine]:
    """An engine in a network namespace of its own; what it holds is gone at the end.

    In a namespace, because an engine without a bridge deletes the machine's docker0 at start.

    Args:
        disk_mb: the size of its disk, in memory; None: a folder of this machine.
        options: more for dockerd.
        programs: a folder of programs that it finds before all others, dockerd among them.
        bridge: it has a default network, without which BuildKit runs no command.
    """
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    dockerd = shutil.which("dockerd", path=f"{path}:/usr/sbin")
    if os.geteuid() != 0 or dockerd is None or shutil.which("ip") is None:
        pytest.skip("only root can make a network namespace and start a second engine")
    with ExitStack() as stack:
        # Not pytest's folder: the path of a Unix socket may not be longer than 107 characters.
        folder = Path(tempfile.mkdtemp(prefix="hvd-"))
        stack.callback(shutil.rmtree, folder)
        data = folder / "data"
        data.mkdir()
        if disk_mb is not None:
            _run("mount", "-t", "tmpfs", "-o", f"size={disk_mb}m", "none", str(data))
            stack.callback(_run, "umount", "--lazy", str(data))
        gateway = stack.enter_context(_namespace(folder.name))
        log = stack.enter_context((folder / "log").open("wb"))
        socket = folder / "docker.sock"
        # Not `ip netns exec`, which would give it a new /sys, without cgroups.
        command = ["nsenter", f"--net=/run/netns/{folder.name}", dockerd]
        command += ["--iptables=false", "--ip6tables=false", *([] if bridge else ["--bridge=none"])]
        command += ["--data-root", str(data), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")]
        command += ["--host", f"unix://{socket}", "--insecure-registry", f"{gateway}/32", *options]
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PATH": path})
        stack.callback(process.wait, timeout=300)
        stack.callback(process.terminate)
        found = SecondEngine(docker_host=f"unix://{socket}", gateway=gateway, folder=folder)
        until(lambda: _answers(found), what=f"the second engine, whose log is {folder}/log")
        yield found


@contextmanager
def _namespace(name: str) -> Iterator[str]:
    """A network namespace with a cable to this machine; yields this machine's end of it."""
    # 198.18.0.0/15 is for tests of network devices: RFC 2544. Two addresses per process.
    number = 4 * (os.getpid() % 16384)
    network = f"198.18.{number >> 8}"
    here, there = f"{network}.{(number & 255) + 1}", f"{network}.{(number & 255) + 2}"
    outer, inner = f"{name}-o"[-15:], f"{name}-i"[-15:]
    _run("ip", "netns", "add", name)
    try:
        # The cable goes with the namespace.
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _run("ip", "address", "add", f"{here}/30", "dev", outer)
        _run("ip", "link", "set", outer, "up")
        for command in (
            ("address", "add", f"{there}/30", "dev", inner),
            ("link", "set", inner, "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("ip", "-n", name, *command)
        yield here
    finally:
        _run("ip", "netns", "delete", name)


def _answers(engine: SecondEngine) -> bool:
    command = ["docker", "--host", engine.docker_host, "version"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
