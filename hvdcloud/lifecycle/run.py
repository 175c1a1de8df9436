"""`hvdcloud run`: the project's code to every node, one training job, its output and its result."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from hvdcloud.checkpoints.manifest import list_runs
from hvdcloud.cluster.nodes_gone import not_whole
from hvdcloud.doctor.command import ASSIGNMENT
from hvdcloud.errors import OutputClosedError, UsageError, first_of
from hvdcloud.lifecycle import notify
from hvdcloud.lifecycle.changes import changes_since_up
from hvdcloud.lifecycle.data import data_request, remembered, show_data
from hvdcloud.lifecycle.elastic.replace import replacing
from hvdcloud.lifecycle.horovod import (
    CHECKPOINTS,
    check_interfaces,
    check_tools,
    crowded,
    elastic_limits,
    gloo_timeout,
    hosts_of,
)
from hvdcloud.lifecycle.logs import detached, follow, wait_for_record
from hvdcloud.lifecycle.mirror import bring_home, mirroring, send_for_resume
from hvdcloud.lifecycle.pull import check_target
from hvdcloud.lifecycle.run_model import RunResult, result_of_followed
from hvdcloud.lifecycle.run_options import RunOptions
from hvdcloud.lifecycle.up import check_project
from hvdcloud.remote.code import Sending, list_code, prepare
from hvdcloud.remote.ssh import NodeRefusedError
from hvdcloud.runs import horovod_args
from hvdcloud.runs.reports import plain_name
from hvdcloud.runs.state import About
from hvdcloud.steps import NOTICEABLE_SECONDS
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.cost import Meter
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.config.model import Config
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.node.data.sets import DataRequest

_SHELL_SYNTAX = re.compile(r"[|&;<>()$`*?\[\]#~\n]|^\w+=")


def run(context: Context, options: RunOptions, *, meter: Meter | None = None) -> RunResult:
    """Start a run; unless detached, stream its output until it ends.

    Args:
        meter: is shown the cluster before the run begins.

    Raises:
        UsageError: no cluster, another run is active, a secret is not set.
        NodeError: a node cannot be reached.
        InterruptedByUserError: Ctrl-C; the run continues.
    """
    started = time.monotonic()
    if options.down_when_done and not options.detach:
        # They are pulled at its end, when the nodes would wait for another folder.
        check_target(context, None)
    with context.state.lock("run"):
        cluster = context.cluster()
        context.refuse_others(cluster)
        if changes := changes_since_up(context, cluster):
            if changes.required:
                raise UsageError(changes.summary, hint=f"{changes.command} applies it")
            context.console.warn(f"{changes.summary}; {changes.command} applies it")
        if meter is not None:
            meter.observe(cluster)
        run_id, ranks = start(context, cluster, options)
    if options.detach:
        return RunResult(
            run=run_id, cluster=cluster.name, state="running", ranks=ranks, seconds=time.monotonic() - started
        )
    elastic = context.config.run.elastic is not None
    try:
        with mirroring(context, cluster), replacing(context, run_id, elastic=elastic):
            if context.config.data:
                show_data(context, cluster, run_id)
            final = follow(context, cluster, run_id, elastic=elastic)
        # The head of a run that was lost may be lost too, and the run may be tried again.
        if not options.down_when_done and final.state.result != "lost":
            # The run has ended: its result is not lost for Ctrl-C.
            with contextlib.suppress(KeyboardInterrupt):
                wait_for_record(context, cluster, run_id)
        return result_of_followed(cluster.name, final)
    except OutputClosedError as closed:
        said = detached(cluster, run_id, down_when_done=options.down_when_done)
        message = f"{closed.message}; {said.message}" if closed.message else said.message
        raise OutputClosedError(message, hint=said.hint) from None
    except KeyboardInterrupt:
        raise detached(cluster, run_id, down_when_done=options.down_when_done) from None


def start(context: Context, cluster: Cluster, options: RunOptions) -> tuple[str, int]:
    """Send the code, start horovodrun on the head. Returns the run's id and its number of ranks."""
    config = context.config
    check_tools(config, options)
    if options.fresh and options.resume:
        raise UsageError(
            "--fresh and --resume contradict each other", hint="hvdcloud run --resume RUN continues from it"
        )
    record = context.current_record(cluster)
    if not cluster.whole:
        raise not_whole(cluster, boot_log=context.provider.console)
    resume = None if options.fresh else options.resume or (record.runs[-1] if record.runs else None)
    if resume and (away := bring_home(context, cluster)):
        raise first_of([*away])
    if options.resume:
        _check_resumed(context, cluster, options.resume)
    check_project(context, options.command)
    environment = {**config.run.env, **_secrets(config)}
    told_at = notify.address(config)
    hosts = hosts_of(config, record)
    elastic = elastic_limits(config)
    if elastic and options.ranks:
        raise UsageError(
            "-np does not go with run.elastic: an elastic run has a rank for every slot of its nodes",
            hint="hvdcloud resize N gives it more or fewer nodes; run.slots_per_node sets the ranks of each",
        )
    ranks = options.ranks or horovod_args.default_ranks(hosts)
    if few_gpus := crowded(config, record, hosts if elastic else horovod_args.taken(hosts, ranks)):
        context.console.warn(few_gpus)
    timeout = gloo_timeout(config)
    interface = record.nodes[0].interface
    ssh_port = None if any(node.host for node in cluster.nodes) else horovod_args.SSH_PORT
    if config.run.controller == "mpi":
        check_interfaces(record)
    run_id = new_run_id(cluster.id, record.runs, now=datetime.now(timezone.utc))
    if elastic:
        argv = horovod_args.elastic_argv(
            hosts=hosts,
            least=elastic["min"],
            most=elastic["max"],
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
            timeline=f"{CHECKPOINTS}/{run_id}/timeline.json" if options.timeline else None,
            autotune=f"{CHECKPOINTS}/{run_id}/autotune.csv" if options.autotune else None,
        )
    text = config.run.command
    # Words, or one word for the shell if the text uses its syntax.
    # `FOO=1 python train.py`, of which a shell left words.
    set_first = ["env"] if len(options.command) > 1 and ASSIGNMENT.match(options.command[0]) else []
    command = [*set_first, *options.command] or ([text] if _SHELL_SYNTAX.search(text) else shlex.split(text))
    with context.console.waiting("run", "reading the project's files"):
        code = list_code(config.project_dir, warn=context.console.warn)
    endpoint = context.storage_endpoint
    data = data_request(config.data, nodes=sum(1 for host in hosts if host.slots), endpoint=endpoint)
    header = {
        "run": run_id,
        "cluster": cluster.name,
        "bucket": context.provider.bucket_as_seen_by_nodes(cluster.bucket).bucket,
        "bucket_endpoint": endpoint,
        "keep_every": config.checkpoints.keep_every,
        "workspace_bytes": int(config.checkpoints.workspace_gb * 1e9),
        "command": command,
        "env": environment,
        "resume": resume,
        "elastic": elastic is not None,
        "stuck": config.limits.stuck,
        "grace": config.run.grace,
    }
    indices = {node.name: node.index for node in cluster.nodes}
    slots = {host.name: host.slots for host in hosts}
    payload = {
        "run": run_id,
        "cluster": cluster.name,
        "hosts": [{"name": host.name, "index": indices[host.name], "slots": host.slots} for host in hosts],
        "np": ranks,
        "horovodrun": argv,
        "controller": config.run.controller,
        "gloo_timeout": timeout,
        "stuck": config.limits.stuck,
        "elastic": elastic,
        "down_when_done": options.down_when_done,
        "detached": options.detach,
        "about": _about(context, cluster, command, record),
        **({"data": data.to_json()} if data else {}),
    }
    shares = {name: share for share, name in enumerate(host.name for host in hosts if host.slots)}
    fleet = context.fleet(cluster)
    try:
        with context.console.steps() as steps:

            def show(sending: Sending) -> None:
                text, total = (sending.text, sending.total) if sending.sent < sending.total else (ready, None)
                steps.update("run", text, done=sending.sent, total=total, in_bytes=True, after=NOTICEABLE_SECONDS)

            if resume:
                send_for_resume(context, cluster, resume)
            ready = f"preparing the nodes, with the checkpoints of run {resume}" if resume else "preparing the nodes"
            steps.update("run", ready, after=NOTICEABLE_SECONDS)
            sending = Sending(show, context.console.warn)
            sent = fleet.each(
                lambda session: prepare(
                    session,
                    header={
                        **header,
                        "node": session.node.index,
                        "slots": slots[session.node.name],
                        **_data_of(data, shares.get(session.node.name)),
                        **({"notify": told_at} if told_at and not session.node.index else {}),
                    },
                    folder=config.project_dir,
                    code=code,
                    sending=sending,
                )
            )
            # Before it begins: a run that this machine does not know of would be neither resumed nor waited for.
            known = remembered(record, config.data)
            context.state.save(replace(record, runs=(*record.runs, run_id), data=known))
            context.state.journal.record("run", cluster_id=cluster.id, run=run_id)
            fleet.head.call(f"launch {run_id}", payload=payload)
    except NodeRefusedError as error:
        context.state.save(record)
        if not plain_name(error.answer.get("active")):
            raise
        active = plain_name(error.answer["active"])
        raise UsageError(
            f"run {active} is still active on cluster {cluster.name}",
            hint=f"hvdcloud logs -f {active} follows it; hvdcloud stop --name {cluster.name} ends it",
        ) from None
    most = max(sent, key=lambda node: node.files)
    context.console.detail(
        f"{counted(len(code), 'file')} of code; sent {most.files} ({most.bytes} bytes) to a node at most"
    )
    if sent[0].restored:
        files = counted(sent[0].restored, "checkpoint file")
        context.console.say(
            f"this run continues from run {resume}, {files} restored on every node (--fresh starts empty)"
        )
    context.console.say(
        f"run {run_id}: {counted(ranks, 'rank')} on {counted(len(hosts), 'node')}: {shlex.join(command)}"
    )
    return run_id, ranks


def new_run_id(cluster_id: str, runs: Sequence[str], *, now: datetime) -> str:
    """A name for a run that begins now; of those that begin in one second, the later ones get the seconds after.

    Args:
        runs: names that the cluster's runs have.
        now: in UTC.
    """
    while (name := f"{now:%Y%m%d-%H%M%S}-{cluster_id}") in runs:
        now += timedelta(seconds=1)
    return name


def _check_resumed(context: Context, cluster: Cluster, run_id: str) -> None:
    """Raise UsageError if the bucket holds nothing of the run to continue from."""
    bucket = context.bucket(cluster)
    known = list_runs(bucket, cluster.name)
    if run_id not in known:
        newest = f"its newest are {', '.join(known[-3:])}" if known else "hvdcloud run starts the first one"
        near = difflib.get_close_matches(run_id, known, n=1)
        raise UsageError(
            f"{bucket.url} holds no run {run_id} of {cluster.name}",
            hint=f"hvdcloud run --resume {near[0]}" if near else newest,
        )


def _data_of(data: DataRequest | None, share: int | None) -> Mapping[str, Any]:
    """The part of a node's header; a head that only drives needs no data."""
    return {} if data is None or share is None else {"data": replace(data, index=share).to_json()}


def _about(context: Context, cluster: Cluster, command: Sequence[str], record: ClusterRecord) -> Mapping[str, Any]:
    """What the run's state says of its cluster, to be read after the nodes are gone."""
    since = (cluster.costs_since or cluster.created).timestamp()
    ready = context.state.journal.times(cluster.id).get("up-done")
    about = About(
        provider=cluster.provider,
        machine=context.platform.machines(),
        image=cluster.image,
        command=shlex.join(command),
        dollars_per_hour=cluster.dollars_per_hour,
        boot_seconds=None if record.runs or ready is None else max(0.0, ready - since),
        gpus=sum(node.gpus for node in record.nodes),
    )
    return {key: value for key, value in asdict(about).items() if value or key != "gpus"}


def _secrets(config: Config) -> dict[str, str]:
    missing = [name for name in config.run.secrets if name not in os.environ]
    if missing:
        message = f"run.secrets names {missing[0]}, which is not set here"
        raise UsageError(message, hint=f"export {missing[0]}=… and run again")
    return {name: os.environ[name] for name in config.run.secrets}
