"""The resources of this container: cores, GPUs, the interface that leads to the other nodes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Any

from hvdcloud.node.files import read_json
from hvdcloud.node.paths import SSH_PORT, node_file

LOOPBACK = "lo"


def facts() -> dict[str, Any]:
    """What the entrypoint wrote down: name, cores (or null), environment of the image."""
    return read_json(node_file()) or {}


def on_vm() -> bool:
    """Whether this node is a VM with a metadata server, which gives tokens of the VM's service account."""
    return bool(facts().get("metadata"))


def name() -> str:
    """This node's name."""
    return str(facts().get("name") or socket.gethostname())


def ssh_port() -> int:
    """Where this node's sshd answers: what the provider said, where nodes share their machine's ports with others."""
    return int(facts().get("ssh_port") or SSH_PORT)


def image_environment() -> dict[str, str]:
    """The image's own environment variables, which SSH sessions do not see."""
    return {str(key): str(value) for key, value in (facts().get("environment") or {}).items()}


def cores() -> int:
    """CPU cores for the ranks of this node: what the provider said, else what the kernel grants."""
    return max(1, int(facts().get("cores") or len(os.sched_getaffinity(0))))


def killed_for_memory(root: Path = Path("/")) -> int:
    """How many processes of this container the kernel has killed because there was no memory left (cgroups(7)).

    The container's control group, of version 1 or 2, counts them also where it has no limit, and the machine as a whole
    is short. The kernel's own count is of every process of the machine: it serves only where no control group counts.

    Args:
        root: where the kernel's files are.
    """
    # Version 1 first: where both are mounted, only one of them has the memory.
    for name in ("sys/fs/cgroup/memory/memory.oom_control", "sys/fs/cgroup/memory.events", "proc/vmstat"):
        with contextlib.suppress(OSError), (root / name).open() as counters:
            for line in counters:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def gpus() -> int:
    """GPUs that the driver shows in this container."""
    try:
        return sum(1 for entry in os.scandir("/dev") if re.fullmatch(r"nvidia\d+", entry.name))
    except OSError:
        return 0


def interface_towards(address: str) -> str | None:
    """The network interface over which the kernel sends to an IPv4 address; None where no route leads there."""
    import psutil  # In the nodes' image only, and the laptop imports this file as well.

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect((address, SSH_PORT))  # Sends nothing.
        except OSError:
            return None
        own, _ = any_socket.getsockname()
    every = psutil.net_if_addrs().items()
    return next((name for name, addresses in every if any(each.address == own for each in addresses)), None)


def outward_interface() -> str:
    """The interface that leads out of this node; `lo` where none does."""
    return interface_towards("192.0.2.1") or LOOPBACK
