"""`hvdcloud run`: the project's code to every node, one training job, its output and its result."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CheckpointError, InterruptedByUserError, JobFailedError, UsageError
from hvdcloud.horovod import GLOO_TIMEOUT_SECONDS, GLOO_TIMEOUT_VARIABLE, Host, default_ranks, horovodrun_argv

if TYPE_CHECKING:
    from hvdcloud.config import Config
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.lifecycle.cost import Cost, Meter
    from hvdcloud.lifecycle.progress import Progress
    from hvdcloud.providers.base import Cluster

METADATA_CREDENTIALS = "metadata"
"""What stands in a run's header instead of credentials where the nodes ask their metadata server."""
_SHELL_SYNTAX = re.compile(r"[|&;<>()$`*?\[\]#~\n]|^\w+=")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line may ask of a run."""

    command: Sequence[str] = ()
    """What every rank runs; empty: `run.command`."""
    ranks: int | None = None
    detach: bool = False
    down_when_done: bool = False
    fresh: bool = False
    """Do not go on from the cluster's previous run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended, or that it goes on."""

    run: str
    cluster: str
    state: str
    """running | succeeded | failed | stopped | lost"""
    ranks: int
    exit_code: int | None
    reason: str
    seconds: float
    checkpoint_files: int
    checkpoints_complete: bool
    last_line: str = ""
    """The last line that rank 0 printed, if the run was followed."""
    progress: Progress | None = None
    """The epochs or steps that it did, if it was followed and rank 0 prints them."""
    cost: Cost | None = None
    """Of its cluster, where that went with the run; None also where it costs nothing."""

    @property
    def summary(self) -> str:
        """One line for people."""
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        files = f"{self.checkpoint_files} checkpoint file(s)" if self.checkpoint_files else "no checkpoints"
        where = ", all in the bucket" if self.checkpoint_files else ""
        if not self.checkpoints_complete:
            where = ", NOT all in the bucket"
        return f"run {self.run} {self.state} after {self.seconds:.1f} s{code}; {files}{where}"

    def raise_for_failure(self, *, hint: str | None = None, pulled: bool = False) -> None:
        """Turn anything but success into an error.

        Args:
            hint: instead of the one that fits while the cluster is there.
            pulled: every checkpoint has been fetched and verified since.

        Raises:
            JobFailedError: the job failed, was stopped or lost.
            CheckpointError: it succeeded, but not every checkpoint is in the bucket.
        """
        if self.state == "running":
            return
        if self.state == "succeeded":
            if not self.checkpoints_complete and not pulled:
                raise CheckpointError(
                    f"run {self.run} succeeded, but not every checkpoint is in the bucket; its nodes hold them",
                    hint="mend the bucket; hvdcloud down then saves them before it deletes the nodes",
                )
            return
        code = self.exit_code if self.exit_code is not None else 1
        raise JobFailedError(
            f"run {self.run} {self.state}: {self.reason or f'exit code {code}'}",
            hint=hint or f"hvdcloud logs {self.run} shows its output; hvdcloud pull fetches the checkpoints so far",
            exit_code=code,
        )


def run(context: Context, options: RunOptions, *, meter: Meter | None = None) -> RunResult:
    """Start a run; unless detached, stream its output until it ends.

    Args:
        meter: is shown the cluster before the run begins.

    Raises:
        UsageError: no cluster, another run is active, a secret is not set.
        NodeError: a node cannot be reached.
        InterruptedByUserError: Ctrl-C; the run goes on.
    """
    started = time.monotonic()
    with context.state.lock("run"):
        cluster = context.cluster()
        if meter is not None:
            meter.saw(cluster)
        run_id, ranks = start(context, cluster, options)
    if options.detach:
        return RunResult(
            run=run_id,
            cluster=cluster.name,
            state="running",
            ranks=ranks,
            exit_code=None,
            reason="",
            seconds=time.monotonic() - started,
            checkpoint_files=0,
            checkpoints_complete=False,
        )
    from hvdcloud.lifecycle.logs import follow

    try:
        final = follow(context, cluster, run_id)
        result = replace(result_of(cluster.name, final.state), last_line=final.last_line, progress=final.progress)
        context.console.say(result.summary)
        return result
    except KeyboardInterrupt:
        raise InterruptedByUserError(
            f"detached from run {run_id}; it goes on",
            hint=f"hvdcloud logs -f {run_id} --name {cluster.name} reattaches; "
            f"hvdcloud stop --name {cluster.name} ends it",
        ) from None


def result_of(cluster: str, state: Mapping[str, Any]) -> RunResult:
    """From the node program's state of a run."""
    checkpoints = state.get("checkpoints") or {}
    ended, began = state.get("ended"), state.get("started")
    return RunResult(
        run=str(state["run"]),
        cluster=cluster,
        state=str(state.get("result") or "running") if state.get("state") == "done" else "running",
        ranks=int(state.get("np") or len(state.get("ranks") or ())),
        exit_code=state.get("exit_code"),
        reason=str(state.get("reason") or ""),
        seconds=float((ended or time.time()) - began) if began else 0.0,
        checkpoint_files=int(checkpoints.get("files") or 0),
        checkpoints_complete=bool(checkpoints.get("complete")),
    )


def start(context: Context, cluster: Cluster, options: RunOptions) -> tuple[str, int]:
    """Send the code, start horovodrun on the head. Returns the run's id and its number of ranks."""
    from hvdcloud.lifecycle.nodes_gone import not_whole
    from hvdcloud.remote.code import list_code, prepare
    from hvdcloud.remote.ssh import NodeRefusedError

    config = context.config
    facts = context.facts(cluster)
    if not cluster.whole:
        raise not_whole(context, cluster)
    environment = {**config.run.env, **_secrets(config)}
    hosts = _hosts(config, facts)
    ranks = options.ranks or default_ranks(hosts)
    gloo_timeout = _gloo_timeout(config)
    argv = horovodrun_argv(
        hosts=hosts,
        ranks=ranks,
        interface=str(facts["nodes"][0]["interface"]),
        controller=config.run.controller,
        mpi_args=config.run.mpi_args,
        gloo_timeout=gloo_timeout,
    )
    command = list(options.command) or _command(config.run.command)
    run_id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{cluster.id}"
    code = list_code(config.project_dir)
    sight = context.provider.sight(bucket=cluster.bucket, bucket_endpoint=context.storage_endpoint)
    previous = list(facts.get("runs") or [])
    header = {
        "run": run_id,
        "cluster": cluster.name,
        "bucket": sight.bucket,
        "bucket_endpoint": sight.bucket_endpoint,
        "keep_every": config.checkpoints.keep_every,
        "command": command,
        "env": environment,
        "resume": previous[-1] if previous and not options.fresh else None,
        "credentials": _storage_credentials(config, cluster.bucket, context.storage_endpoint),
    }
    slots = {host.name: host.slots for host in hosts}
    payload = {
        "run": run_id,
        "cluster": cluster.name,
        "hosts": [{"name": host.name, "slots": host.slots} for host in hosts],
        "np": ranks,
        "horovodrun": argv,
        "controller": config.run.controller,
        "gloo_timeout": gloo_timeout,
        "down_when_done": options.down_when_done,
        "detached": options.detach,
        "about": about_cluster(config, cluster, command),
    }
    fleet = context.fleet(cluster)
    try:
        sent = fleet.each(
            lambda session: prepare(
                session,
                header={**header, "node": session.node.index, "slots": slots[session.node.name]},
                folder=config.project_dir,
                code=code,
            )
        )
        # Before it begins: a run that this machine does not know of would be neither resumed nor waited for.
        context.state.save({**facts, "runs": [*previous, run_id]})
        context.state.journal.record("run", cluster_id=cluster.id, run=run_id)
        fleet.head.call(f"launch {run_id}", payload=payload)
    except NodeRefusedError as error:
        context.state.save(dict(facts))
        if "active" not in error.answer:
            raise
        active = error.answer["active"]
        raise UsageError(
            f"run {active} is still active on cluster {cluster.name}",
            hint=f"hvdcloud logs -f {active} follows it; hvdcloud stop --name {cluster.name} ends it",
        ) from None
    most = max(sent, key=lambda node: node.files)
    context.console.detail(f"{len(code)} file(s) of code; sent {most.files} ({most.bytes} bytes) to a node at most")
    if sent[0].restored:
        context.console.say(f"{sent[0].restored} checkpoint file(s) of run {previous[-1]} restored on every node")
    context.console.say(f"run {run_id}: {ranks} rank(s) on {len(hosts)} node(s): {shlex.join(command)}")
    return run_id, ranks


def about_cluster(config: Config, cluster: Cluster, command: Sequence[str]) -> dict[str, Any]:
    """What a run's state is to say of its cluster, for whoever reads it when the nodes are gone. Holds no secret."""
    machine = None
    if cluster.provider == "gce":
        gpu = config.gce.gpu
        machine = config.gce.machine_type + (f" with {gpu.count} {gpu.type}" if gpu else "")
        machine += ", Spot" if config.gce.spot else ""
    return {
        "provider": cluster.provider,
        "machine": machine,
        "image": cluster.image,
        "command": shlex.join(command),
        "dollars_per_hour": cluster.dollars_per_hour,
        "dollars_before": cluster.dollars_so_far,
        "costs_since": (cluster.costs_since or cluster.created).timestamp(),
        "worst_case_dollars": cluster.worst_case_dollars,
        "seen": time.time(),
    }


def _hosts(config: Config, facts: Mapping[str, Any]) -> list[Host]:
    return [
        Host(name=str(node["name"]), slots=config.run.slots_per_node or int(node["gpus"]) or 1)
        for node in facts["nodes"]
    ]


def _gloo_timeout(config: Config) -> int:
    text = config.run.env.get(GLOO_TIMEOUT_VARIABLE)
    if text is None:
        return GLOO_TIMEOUT_SECONDS
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"run.env: {GLOO_TIMEOUT_VARIABLE} is {text!r}", hint="give whole seconds, 1 or more")
    return int(text)


def _command(text: str) -> list[str]:
    """Words, or one word for the shell if the text uses its syntax."""
    return [text] if _SHELL_SYNTAX.search(text) else shlex.split(text)


def _secrets(config: Config) -> dict[str, str]:
    missing = [name for name in config.run.secrets if name not in os.environ]
    if missing:
        raise UsageError(
            f"run.secrets names {missing[0]}, which is not set here", hint=f"export {missing[0]}=… and run again"
        )
    return {name: os.environ[name] for name in config.run.secrets}


def _storage_credentials(config: Config, bucket: str, endpoint: str | None) -> str | None:
    """With what the nodes' agents open the bucket.

    A VM has its own service account, whose tokens the metadata server gives out. Containers on this machine have none:
    they use this machine's credentials, which travel over the pinned connection into a 0600 file that is gone when the
    run ends.
    """
    if not bucket.startswith("gs://"):
        return None
    if config.provider == "gce":
        return METADATA_CREDENTIALS
    if endpoint:
        return None
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(file) if file else Path.home() / ".config" / "gcloud" / "application_default_credentials.json"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        from hvdcloud.errors import CredentialsError

        raise CredentialsError(
            f"no credentials for {bucket}: {path} cannot be read ({error.strerror})",
            hint="gcloud auth application-default login",
        ) from error
