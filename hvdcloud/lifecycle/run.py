"""`hvdcloud run`: the project's code to every node, one training job, its output and its result."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import not_whole
from hvdcloud.errors import NodeError, OutputClosedError, UsageError, first_of
from hvdcloud.lifecycle.changed_settings import changes_since_up
from hvdcloud.lifecycle.elastic.replace import replacing
from hvdcloud.lifecycle.logs import detached, follow, wait_for_record
from hvdcloud.lifecycle.pull import check_target, kept_run
from hvdcloud.lifecycle.run_result import RunResult, result_of_followed
from hvdcloud.lifecycle.run_spec import RunOptions, spec_of_run
from hvdcloud.lifecycle.ssh_nodes.homecoming import bring_home, mirroring, send_for_resume
from hvdcloud.lifecycle.up import check_project
from hvdcloud.remote.code import Sent, list_code, prepare
from hvdcloud.remote.ssh import NodeRefusedError
from hvdcloud.runs.data_progress import progress, summary
from hvdcloud.runs.notice import address_in
from hvdcloud.runs.reports import plain_name
from hvdcloud.runs.state import RunState
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.cost import Meter
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.ssh import Session

_LOOK_SECONDS, _ANSWER_SECONDS = 0.5, 20.0


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
        check_target(context)
    with context.state.lock("run"):
        cluster = context.cluster()
        context.refuse_others(cluster)
        if changes := changes_since_up(context, cluster):
            context.console.warn(f"{changes.message}; {changes.hint}")
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
                _show_data(context, cluster, run_id)
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
    """Send the code, start the run on the head. Returns the run's id and its number of ranks."""
    config = context.config
    if options.fresh and options.resume:
        hint = f"hvdcloud run --resume {options.resume} continues from that run"
        raise UsageError("--fresh and --resume contradict each other", hint=hint)
    record = context.current_record(cluster)
    if not cluster.whole:
        raise not_whole(cluster)
    resume = None if options.fresh else options.resume or (record.runs[-1] if record.runs else None)
    if resume and (away := bring_home(context, cluster)):
        raise first_of([*away])
    if options.resume:
        kept_run(context.bucket(cluster), cluster.name, options.resume)
    check_project(context, options.command)
    environment = {**config.run.env, **{name: os.environ[name] for name in config.run.secrets}}
    told_at = address_in(config.notify) if config.notify else None
    spec = spec_of_run(context, cluster, record, options, resume=resume)
    with context.console.waiting("run", "reading the project's files"):
        code = list_code(config.project_dir, warn=context.console.warn)
    shares = {host.name: share for share, host in enumerate(spec.hosts)}
    hosts = {host.name: host for host in spec.hosts}

    def send(session: Session) -> Sent:
        host, data = hosts[session.node.name], spec.data
        if data is not None:
            data = replace(data, index=shares[host.name])
        own = replace(spec, node=host.index, slots=host.slots, data=data)
        address = {"notify": told_at} if told_at and not host.index else {}
        header = {**own.to_json(), "env": environment, **address}
        return prepare(session, header=header, folder=config.project_dir, code=code)

    fleet = context.fleet(cluster)
    try:
        with context.console.steps() as steps:
            if resume:
                send_for_resume(context, cluster, resume)
            ready = f"preparing the nodes, with the checkpoints of run {resume}" if resume else "preparing the nodes"
            steps.update("run", ready, if_slow=True)
            sent = fleet.each(send)
            # Before it begins: a run that this machine does not know of would be neither resumed nor waited for.
            context.state.save(replace(record, runs=(*record.runs, spec.run)))
            fleet.head.call(f"launch {spec.run}")
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
    where = f"{counted(spec.np, 'rank')} on {counted(len(hosts), 'node')}"
    context.console.say(f"run {spec.run}: {where}: {shlex.join(spec.command)}")
    return spec.run, spec.np


def _show_data(context: Context, cluster: Cluster, run_id: str) -> None:
    """Show how the nodes' data arrive, until the run starts its ranks or ends. The head waits, whether or not anything
    follows."""
    head = context.fleet(cluster).head
    with context.console.steps() as steps:
        while True:
            try:
                answer = head.call(f"state {run_id}", timeout=_ANSWER_SECONDS)
            except NodeError:
                # `follow` has patience with a head that does not answer.
                return
            state = next(iter(RunState.all_from_json(answer.get("runs"))), RunState())
            for each in state.data:
                steps.update(each.node, f"data: {progress(each)}")
            if not state.waits_for_data:
                break
            time.sleep(_LOOK_SECONDS)
    if said := summary(state):
        context.console.say(f"data: {said}")
