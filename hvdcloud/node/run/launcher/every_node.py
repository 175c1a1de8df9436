"""`every-node` and `one-node`: the launchers torchrun and each, started on every node over ssh.

`every-node` runs on the head and ends when all nodes have, or one has failed. What the nodes write reaches its standard
output line by line, so that no line is cut by another node's.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from hvdcloud.errors import NodeError
from hvdcloud.node import paths
from hvdcloud.node.files import replace
from hvdcloud.node.mesh import ssh
from hvdcloud.node.mesh.nodes import mesh_interface
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.launcher import launcher_environment
from hvdcloud.runs.launchers import taken

LAST_LINES_SECONDS = 1.0
"""How long the other nodes may go on when one has failed: what they still say is part of why."""
_LONGEST_LINE = 1 << 16


def every_node(run: str) -> int:
    """Start the launcher of a run on all of its nodes.

    Returns:
        0 if it ended well on all of them, else the exit code of the first that did not; 128 + N for signal N.
    """
    spec = Spec.load(run)
    names = nodes_of(spec)
    # Any free port: the head is the same machine, and what listens there does so a moment later.
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    here = [ssh.NODE_PROGRAM, "one-node", run, str(port), *names]
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    writing = threading.Lock()
    relays = []
    for name in names:
        argv = here if name == spec.name else ssh.node_command(name, " ".join(here[1:]))
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        relays.append(threading.Thread(target=_relay, args=(process, writing, ends), daemon=True))
        relays[-1].start()
    for _ in names:
        if code := ends.get():
            deadline = time.monotonic() + LAST_LINES_SECONDS
            for relay in relays:
                relay.join(max(0.0, deadline - time.monotonic()))
            return 128 - code if code < 0 else code
    return 0


def nodes_of(spec: Spec) -> list[str]:
    """The nodes that take part, the head first: of an elastic run those that its supervisor has listed."""
    if spec.elastic is not None:
        lines = paths.hosts_file(spec.run).read_text().splitlines()
        return [line.rpartition(":")[0] for line in lines]
    return [host.name for host in taken(spec.hosts, spec.np, launcher=spec.launcher)]


def _relay(process: subprocess.Popen[bytes], writing: threading.Lock, ends: queue.SimpleQueue[int]) -> None:
    assert process.stdout
    while line := process.stdout.readline(_LONGEST_LINE):
        with writing:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    ends.put(process.wait())


def one_node(run: str, port: str, nodes: Sequence[str]) -> int:
    """Become this node's torchrun, or its one rank. Does not return.

    Args:
        port: of the head, where the ranks meet.
        nodes: all that take part, the head first.

    Raises NodeError: the image has no torchrun.
    """
    spec = Spec.load(run)
    index = nodes.index(spec.name)
    environment = launcher_environment(run) | {
        "HVDCLOUD_NODE_RANK": str(index),
        "HVDCLOUD_NODES": str(len(nodes)),
        "HVDCLOUD_HEAD": nodes[0],
        "HVDCLOUD_HOSTFILE": str(_write_hostfile(spec, nodes)),
        "MASTER_ADDR": nodes[0],
        "MASTER_PORT": port,
        # What torchrun else sets to 1, with a warning.
        "OMP_NUM_THREADS": str(spec.threads),
    }
    if len(nodes) > 1:
        # By themselves they take the address of the host's own name, which may be 127.0.1.1.
        environment |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), mesh_interface())
    rank = [ssh.NODE_PROGRAM, "rank", run]
    if spec.launcher == "torchrun":
        place = ["--nnodes", str(len(nodes)), "--node-rank", str(index), "--nproc-per-node", str(spec.slots)]
        meet = ["--master-addr", nodes[0], "--master-port", port]
        rank = ["torchrun", *place, *meet, "--no-python", *rank]
    program = shutil.which(rank[0], path=environment["PATH"])
    if program is None:
        hint = "hvdcloud build makes an image that has it"
        raise NodeError(f"node {spec.name} has no {rank[0]} on its PATH", hint=hint)
    os.chdir(paths.workspace())
    os.execve(program, rank, environment)


def _write_hostfile(spec: Spec, nodes: Sequence[str]) -> os.PathLike[str]:
    """Write the nodes and their slots as mpirun and DeepSpeed read them."""
    slots = {host.name: host.slots for host in spec.hosts}
    file = paths.run_dir(spec.run) / "hostfile"
    replace(file, "".join(f"{name} slots={slots.get(name, spec.slots)}\n" for name in nodes))
    return file
