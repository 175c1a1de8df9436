"""What starts the ranks of a run, and on which hosts. Pure; copied into the image.

`horovod`: horovodrun on the head, which reaches the other nodes itself (horovod_args.py). `torchrun`: PyTorch's on
every node, with a rank for each of its slots. `each`: the command itself, as one rank on every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hvdcloud.errors import UsageError
from hvdcloud.runs.spec import Host
from hvdcloud.units import counted

PROGRAMS = {"horovod": "horovodrun", "torchrun": "torchrun", "each": "the launcher"}
"""What each is called in a sentence."""
ELASTIC_TIMEOUT_SECONDS = 900
"""How long an elastic run waits for nodes when there are fewer than its minimum, before it ends."""


def default_ranks(hosts: Sequence[Host], *, launcher: str = "horovod") -> int:
    """One rank for every slot; with `each`, for every node."""
    return len(hosts) if launcher == "each" else sum(host.slots for host in hosts)


def taken(hosts: Sequence[Host], ranks: int, *, launcher: str = "horovod") -> list[Host]:
    """The slots that this many ranks take, in the hosts' order; with `each`, a rank takes a whole node."""
    if launcher == "each":
        return list(hosts[:ranks])
    found = []
    for host in hosts:
        if ranks > 0:
            found.append(replace(host, slots=min(host.slots, ranks)))
        ranks -= host.slots
    return found


def check_ranks(hosts: Sequence[Host], ranks: int, *, launcher: str, least: int = 1) -> None:
    """Raise UsageError where a launcher cannot start this many ranks on these hosts. `least`: `run.elastic.min`."""
    most = default_ranks(hosts, launcher=launcher)
    nodes = counted(len(hosts), "node")
    if len(hosts) < least:
        hint = "hvdcloud resize makes the cluster larger; or set a smaller run.elastic.min"
        raise UsageError(f"the cluster has {nodes}, and run.elastic.min is {least}", hint=hint)
    if not 1 <= ranks <= most:
        if launcher == "each":
            message = f"{ranks} ranks do not fit: run.launcher each starts one on each of {nodes}"
            raise UsageError(message, hint=f"-np 1 to {most}, or more nodes")
        raise UsageError(
            f"{ranks} ranks do not fit: {nodes} with {counted(most, 'slot')}",
            hint=f"-np 1 to {most}, more nodes, or a larger run.slots_per_node",
        )
    filled = taken(hosts, ranks, launcher=launcher)
    if launcher == "torchrun" and filled[-1].slots < (slots := hosts[len(filled) - 1].slots):
        fits = ranks - filled[-1].slots or slots
        message = f"{ranks} ranks do not fill {filled[-1].name}, which has {slots} slots: torchrun starts one for each"
        raise UsageError(message, hint=f"-np {fits}, or run.slots_per_node: {filled[-1].slots}")
