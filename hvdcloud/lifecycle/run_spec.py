"""The spec of a run, which every node gets: from the configuration, the command line and what is known of the nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from hvdcloud.doctor.command import ASSIGNMENT
from hvdcloud.errors import UsageError
from hvdcloud.node.paths import MOUNTED
from hvdcloud.runs import horovod_args, launchers
from hvdcloud.runs.spec import About, DataRequest, DataSet, Elastic, Host, RunSpec
from hvdcloud.storage.open import storage_endpoint
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.config.data import DataConfig
    from hvdcloud.config.model import Config
    from hvdcloud.lifecycle.context import Context

_SHELL_SYNTAX = re.compile(r"[|&;<>()$`*?\[\]#~\n]|^\w+=")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a command may ask of a run."""

    command: Sequence[str] = ()
    """What every rank runs; empty: `run.command`."""
    ranks: int | None = None
    detach: bool = False
    down_when_done: bool = False
    fresh: bool = False
    """Do not continue from the cluster's previous run."""
    resume: str | None = None
    """The run to continue from, of a cluster of this name that may be gone; None: the cluster's previous one."""


def spec_of_run(
    context: Context, cluster: Cluster, record: ClusterRecord, options: RunOptions, *, resume: str | None
) -> RunSpec:
    """What a run is that begins now, as its head sees it.

    Raises:
        UsageError: the nodes, or Horovod, cannot run it.
    """
    config = context.config
    elastic = Elastic(min=config.run.elastic.min, max=config.most_nodes) if config.run.elastic else None
    if elastic and options.ranks:
        raise UsageError(
            "-np does not go with run.elastic: an elastic run has a rank for every slot of its nodes",
            hint="hvdcloud resize N gives it more or fewer nodes; run.slots_per_node sets the ranks of each",
        )
    hosts, launcher = hosts_of(config, record), config.run.launcher
    ranks = options.ranks or launchers.default_ranks(hosts, launcher=launcher)
    launchers.check_ranks(hosts, ranks, launcher=launcher, least=elastic.min if elastic else 1)
    if few_gpus := crowded(config, record, hosts if elastic else launchers.taken(hosts, ranks, launcher=launcher)):
        context.console.warn(few_gpus)
    run_id = new_run_id(cluster.id, record.runs, now=datetime.now(timezone.utc))
    timeout, interface = gloo_timeout(config), record.nodes[0].interface
    ssh_port = None if any(node.host for node in cluster.nodes) else horovod_args.SSH_PORT
    if launcher != "horovod":
        argv = []
    elif elastic:
        argv = horovod_args.elastic_argv(
            hosts=hosts,
            least=elastic.min,
            most=elastic.max,
            interface=interface,
            gloo_timeout=timeout,
            ssh_port=ssh_port,
        )
    else:
        argv = horovod_args.horovodrun_argv(
            hosts=hosts,
            ranks=ranks,
            interface=interface,
            controller=config.run.controller,
            mpi_args=config.run.mpi_args,
            gloo_timeout=timeout,
            ssh_port=ssh_port,
        )
    text = config.run.command
    # `FOO=1 python train.py`, of which a shell left words.
    set_first = ["env"] if len(options.command) > 1 and ASSIGNMENT.match(options.command[0]) else []
    # Words, or one word for the shell if the text uses its syntax.
    command = [*set_first, *options.command] or ([text] if _SHELL_SYNTAX.search(text) else shlex.split(text))
    endpoint = storage_endpoint()
    return RunSpec(
        run=run_id,
        cluster=cluster.name,
        bucket=context.provider.bucket_as_seen_by_nodes(cluster.bucket).bucket,
        bucket_endpoint=endpoint,
        keep_every=config.checkpoints.keep_every,
        workspace_bytes=int(config.checkpoints.workspace_gb * 1e9),
        command=tuple(command),
        resume=resume,
        stuck=config.limits.stuck,
        grace=config.run.grace,
        hosts=tuple(hosts),
        np=ranks,
        launcher=launcher,
        horovodrun=tuple(argv),
        controller=config.run.controller,
        gloo_timeout=timeout,
        elastic=elastic,
        down_when_done=options.down_when_done,
        detached=options.detach,
        about=_about(context, cluster, command, record),
        slots=hosts[0].slots,
        data=data_request(config.data, nodes=len(hosts), endpoint=endpoint),
    )


def check_planned(config: Config, ranks: int) -> None:
    """Raise UsageError where nodes that are yet to be made will not take this many ranks, as far as that is known."""
    slots = config.run.slots_per_node
    if slots is None and config.image.device == "cpu":
        slots = 1
    elif slots is None and config.provider == "gce" and config.gce.gpu is not None:
        slots = config.gce.gpu.count
    if slots is not None:
        hosts = [Host(name=f"{config.name}-{index}", slots=slots) for index in range(config.nodes)]
        launchers.check_ranks(hosts, ranks, launcher=config.run.launcher)


def new_run_id(cluster_id: str, runs: Sequence[str], *, now: datetime) -> str:
    """A name for a run that begins now; of those that begin in one second, the later ones get the seconds after.

    Args:
        runs: names that the cluster's runs have.
        now: in UTC.
    """
    while (name := f"{now:%Y%m%d-%H%M%S}-{cluster_id}") in runs:
        now += timedelta(seconds=1)
    return name


def hosts_of(config: Config, record: ClusterRecord) -> list[Host]:
    """The nodes with the ranks that each takes, head first."""
    slots = config.run.slots_per_node
    return [Host(name=node.name, index=node.index, slots=node.slots(slots)) for node in record.nodes]


def crowded(config: Config, record: ClusterRecord, hosts: Sequence[Host]) -> str:
    """Which nodes have fewer GPUs than ranks, in words; empty: none has."""
    gpus = {node.name: node.gpus for node in record.nodes}
    full = [
        f"{counted(host.slots, 'rank')} on {counted(gpus[host.name], 'GPU')} of {host.name}"
        for host in hosts
        if config.image.device == "cuda" and 0 < gpus[host.name] < host.slots
    ]
    hint = "without run.slots_per_node, a node has a rank for each of its GPUs, and NCCL takes no second one"
    return f"{', '.join(full)}; {hint}" if full else ""


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


def data_request(data: Mapping[str, DataConfig], *, nodes: int, endpoint: str | None) -> DataRequest | None:
    """What the first node is asked to have; None: there are no data sets.

    Args:
        nodes: how many get a share of what is shared out.
        endpoint: another Cloud Storage endpoint, as the nodes reach it.
    """
    if not data:
        return None
    sets = (
        DataSet(name=name, source=f"file://{MOUNTED}/{name}", mounted=True)
        if each.folder is not None
        else DataSet(name=name, source=each.source, per_node=each.per_node)
        for name, each in data.items()
    )
    return DataRequest(sets=tuple(sets), index=0, count=nodes, endpoint=endpoint)


def _about(context: Context, cluster: Cluster, command: Sequence[str], record: ClusterRecord) -> About:
    """What the run's state says of its cluster, to be read after the nodes are gone."""
    since = (cluster.costs_since or cluster.created).timestamp()
    ready = context.state.journal.times(cluster.id).get("up-done")
    return About(
        provider=cluster.provider,
        machine=context.platform.machines(),
        image=cluster.image,
        command=shlex.join(command),
        dollars_per_hour=cluster.dollars_per_hour,
        boot_seconds=None if record.runs or ready is None else max(0.0, ready - since),
        gpus=sum(node.gpus for node in record.nodes),
    )
