"""How Horovod is started: the ranks of each node, its time limits, its own tools; from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.runs import horovod_args
from hvdcloud.runs.horovod_args import Host
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.config.model import Config
    from hvdcloud.lifecycle.run_options import RunOptions

CHECKPOINTS = "/var/lib/hvdcloud/checkpoints"
"""On every node; below it is the checkpoint directory of each run."""
ONE_RANK_A_GPU = "a node has a rank for each of its GPUs, and NCCL takes no second one"


def hosts_of(config: Config, record: ClusterRecord) -> list[Host]:
    """The nodes with the ranks that each takes, head first."""
    return [Host(name=node.name, slots=node.slots(config.run.slots_per_node)) for node in record.nodes]


def crowded(config: Config, record: ClusterRecord, hosts: Sequence[Host]) -> str:
    """Which nodes have fewer GPUs than ranks, in words; empty: none has."""
    gpus = {node.name: node.gpus for node in record.nodes}
    full = [
        f"{counted(host.slots, 'rank')} on {counted(gpus[host.name], 'GPU')} of {host.name}"
        for host in hosts
        if config.image.device == "cuda" and 0 < gpus[host.name] < host.slots
    ]
    return f"{', '.join(full)}; without run.slots_per_node, {ONE_RANK_A_GPU}" if full else ""


def check_interfaces(record: ClusterRecord) -> None:
    """Raise UsageError where Open MPI, which gets one name for all nodes, would not find the network on one of them."""
    names = {node.interface: node.name for node in record.nodes if node.interface != "lo"}
    if len(names) > 1:
        found = ", ".join(f"{interface} on {name}" for interface, name in names.items())
        raise UsageError(
            f"Open MPI needs one name for the interface between the nodes, and it is {found}",
            hint="run.controller: gloo finds each node's own; or give the interfaces the same name on the hosts",
        )


def elastic_limits(config: Config) -> dict[str, Any] | None:
    """The limits of an elastic run, for the node program; None: the run is not elastic."""
    elastic = config.run.elastic
    if elastic is None:
        return None
    return {"min": elastic.min, "max": config.most_nodes}


def gloo_timeout(config: Config) -> int:
    """Seconds that Gloo waits for other ranks. Raises UsageError: run.env does not give a number of them."""
    text = config.run.env.get(horovod_args.GLOO_TIMEOUT_VARIABLE)
    if text is None:
        return horovod_args.ELASTIC_GLOO_TIMEOUT_SECONDS if config.run.elastic else horovod_args.GLOO_TIMEOUT_SECONDS
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"run.env: {horovod_args.GLOO_TIMEOUT_VARIABLE} is {text!r}", hint="give whole seconds, 1 or more"
        )
    return int(text)


def check_tools(config: Config, options: RunOptions) -> None:
    """Raise UsageError if Horovod's own tools are wanted of an elastic run.

    Whenever nodes come or go, Horovod 0.28.1 starts again in every worker: the timeline is opened again and emptied
    (timeline.cc), on the node where rank 0 is then; the autotuner's file is opened while it is open, which fails and
    ends what it writes (parameter_manager.cc).
    """
    wanted = [name for name, asked in (("timeline", options.timeline), ("autotune", options.autotune)) if asked]
    if wanted and config.run.elastic is not None:
        raise UsageError(
            f"--{wanted[0]} needs a run that is not elastic: Horovod empties or loses the file whenever nodes change",
            hint=f"take run.elastic out of hvdcloud.yaml for a run with --{wanted[0]}",
        )
