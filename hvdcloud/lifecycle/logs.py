"""`hvdcloud logs` and `hvdcloud stop`: follow or end a run, from any terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import NodeState
from hvdcloud.config.types import duration_text
from hvdcloud.errors import HvdcloudError, InterruptedByUserError, NodeError, UsageError
from hvdcloud.json_values import mapping, text
from hvdcloud.lifecycle.elastic.replace import replacing
from hvdcloud.lifecycle.ssh_nodes.homecoming import bring_from_head, mirroring
from hvdcloud.runs import archive
from hvdcloud.runs.log_lines import job_lines, rank_lines
from hvdcloud.runs.notice import address_in, message, send
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.state import RunState
from hvdcloud.units import dollars
from hvdcloud.visible import log_of

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.ssh import Session

RECONNECT_SECONDS = 600.0
STOP_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run that was followed to its end."""

    state: RunState
    log: LogReader
    """What its output says; all of it was read."""


def find_run(context: Context, cluster: Cluster, run_id: str | None) -> RunState:
    """The state of the given run, or of the newest; raises UsageError if the cluster has none."""
    found = context.run_states(cluster)
    for state in reversed(found):
        if run_id is None or run_id == state.run:
            return state
    runs = [state.run for state in found]
    raise UsageError(
        f"cluster {cluster.name} has no run {run_id}" if run_id else f"cluster {cluster.name} has had no run yet",
        hint=f"its runs: {', '.join(runs)}" if runs else "hvdcloud run starts one",
    )


def _kept(
    context: Context, cluster: Cluster | None, run_id: str | None, *, start: int = 0
) -> tuple[RunState, Iterator[bytes]] | None:
    """One run, from the bucket; if the cluster is gone, of every cluster that had its name."""
    bucket, cluster_id = context.bucket(cluster), cluster.id if cluster is not None else None
    return archive.read(bucket, cluster=context.name, cluster_id=cluster_id, run_id=run_id, start=start)


def logs(context: Context, run_id: str | None, *, follow_it: bool, rank: int | None = None) -> Followed:
    """Write a run's output to the console; from the bucket if its nodes are gone. Returns the run's state, and what was
    read of its log.

    Args:
        run_id: None: the newest.
        follow_it: until the run ends.
        rank: only the lines of this one; in an elastic run, of the workers that were this one first.

    Raises:
        UsageError: no such run or rank.  NodeError: the head is lost.
        InterruptedByUserError: Ctrl-C while it is followed; the run continues.
    """
    found = context.find()
    if (found is None or found.is_headless) and (kept := _kept(context, found, run_id)) is not None:
        state, pieces = kept
        _check_rank(state, rank)
        log = _Log(context, rank, elastic=state.elastic is not None)
        for piece in pieces:
            log.take(piece)
        return Followed(state=state, log=log.reader)
    cluster = found or context.cluster()
    state = find_run(context, cluster, run_id)
    _check_rank(state, rank)
    run_id, elastic = state.run, state.elastic is not None
    if follow_it:
        try:
            with mirroring(context, cluster), replacing(context, run_id, elastic=elastic):
                return follow(context, cluster, run_id, rank=rank, elastic=elastic)
        except KeyboardInterrupt:
            raise detached(cluster, run_id, down_when_done=state.down_when_done) from None
    log = _Log(context, rank, elastic=elastic)
    answer = _stream(context, cluster, run_id, log)
    return Followed(state=_state_of(context.fleet(cluster).head, *answer), log=log.reader)


def read_log(context: Context, cluster: Cluster, state: RunState) -> Followed:
    """The end of the log of the newest run, which has ended; nothing of it where the head is gone."""
    reader = LogReader(elastic=state.elastic is not None)
    if not cluster.is_headless:
        answer = context.fleet(cluster).head.call("look")
        said = text(mapping(answer.get("log")).get("text"))
        reader.feed(said.encode(errors="replace") if answer.get("run") == state.run else b"")
    return Followed(state=state, log=reader)


def wait_for_record(context: Context, cluster: Cluster, run_id: str) -> None:
    """Wait until a run that has just ended has its log and how it ended in the bucket, but not long."""
    # What is wrong with the bucket is said where something depends on it.
    with contextlib.suppress(HvdcloudError), context.console.waiting(cluster.name, "waiting for the run's log"):
        fetch = partial(bring_from_head, context, cluster)
        archive.wait(context.bucket(cluster), cluster=cluster.name, run_id=run_id, fetch=fetch)


class _Log:
    """A run's log as it arrives: it is printed, or one rank's lines of it, and read for what it says."""

    def __init__(self, context: Context, rank: int | None, *, elastic: bool) -> None:
        self._console, self.reader, self.offset = context.console, LogReader(elastic=elastic), 0
        self._lines = rank_lines(rank) if rank is not None else None if context.console.verbose else job_lines()

    def take(self, data: bytes) -> None:
        self.offset += len(data)
        self._console.job_output(data if self._lines is None else self._lines.feed(data))
        self.reader.feed(data)


def _check_rank(state: RunState, rank: int | None) -> None:
    """Raise UsageError if the run has no such rank; an elastic run may have had any."""
    if rank is not None and state.np and state.elastic is None and rank >= state.np:
        raise UsageError(
            f"run {state.run} has no rank {rank}",
            hint=f"its ranks are 0 to {state.np - 1}" if state.np > 1 else "its only rank is 0",
        )


def detached(cluster: Cluster, run_id: str, *, down_when_done: bool) -> InterruptedByUserError:
    """What is said after Ctrl-C while a run is followed: it continues, and so may its costs."""
    name = f"--name {cluster.name}"
    follow_it = f"hvdcloud logs -f {name} follows it"
    if down_when_done:
        return InterruptedByUserError(
            f"detached: run {run_id} continues, and then its nodes end themselves",
            hint=f"{follow_it}, hvdcloud pull {name} fetches its checkpoints",
        )
    rate = f", at {dollars(cluster.dollars_per_hour)}/h," if cluster.dollars_per_hour else ""
    return InterruptedByUserError(
        f"detached: run {run_id} continues, and its nodes stay{rate} until hvdcloud down {name}", hint=follow_it
    )


def stop(context: Context, run_id: str | None) -> RunState:
    """End a run on every node; what it had written as checkpoints goes to the bucket. Returns the run's state."""
    cluster = context.cluster()
    grace = context.config.run.grace
    ending = f"waiting up to {duration_text(grace)} for the ranks to save (run.grace); checkpoints go to the bucket"
    run_id = find_run(context, cluster, run_id).run
    context.console.say(ending)
    return RunState.from_json(context.fleet(cluster).head.call(f"stop {run_id}", timeout=STOP_SECONDS + grace))


def follow(
    context: Context, cluster: Cluster, run_id: str, *, rank: int | None = None, elastic: bool = False
) -> Followed:
    """Stream a run's output, or one rank's, until it ends; a lost connection is made again where it broke off.

    Raises:
        NodeError: the head is gone, or was unreachable for ten minutes.
    """
    log, offset = _Log(context, rank, elastic=elastic), 0
    lost_since: float | None = None
    warned: set[str] = set()

    def warn(why: str) -> None:
        """Once for each time that the connection is lost."""
        if why not in warned:
            context.console.warn(why)
            warned.add(why)

    while True:
        try:
            answer = _stream(context, cluster, run_id, log, follow_it=True)
        except NodeError as error:
            if log.offset > offset or lost_since is None:
                lost_since = time.monotonic()
                warned.clear()
            offset = log.offset
            if gone := _head_is_gone(context, cluster, run_id, warn=warn):
                # It may have ended because the run had.
                if (kept := _kept(context, cluster, run_id, start=offset)) is None:
                    _tell_lost(context, cluster, run_id, gone.message)
                    raise gone from error
                for piece in kept[1]:
                    log.take(piece)
                return Followed(state=kept[0], log=log.reader)
            if time.monotonic() - lost_since > RECONNECT_SECONDS:
                raise
            warn(f"{error.message}; the run continues; connecting again (Ctrl-C detaches)")
            context.fleet(cluster).head.close()
            time.sleep(1.0)
        else:
            return Followed(state=_state_of(context.fleet(cluster).head, *answer), log=log.reader)


def _stream(context: Context, cluster: Cluster, run_id: str, log: _Log, *, follow_it: bool = False) -> tuple[int, str]:
    """Read what is not in the log yet; with `follow_it` until the run ends. Raises NodeError: no connection."""
    head = context.fleet(cluster).head
    verb = f"logs {run_id} --offset {log.offset}" + (" --follow" if follow_it else "")
    with contextlib.ExitStack() as starting, head.stream(verb, silent=None) as stream:
        if follow_it and not log.offset:
            starting.enter_context(context.console.waiting("run", "starting the ranks"))
        for data in stream:
            starting.close()
            log.take(data)
        return stream.end()


def _head_is_gone(context: Context, cluster: Cluster, run_id: str, *, warn: Callable[[str], None]) -> NodeError | None:
    """The error for a head that is gone; None while it runs, or if the provider, or a place that may have it, does not
    answer."""
    try:
        now = context.provider.cluster(cluster.name)
    except HvdcloudError as error:
        # A laptop without a network reaches neither the head nor its provider.
        warn(error.message)
        return None
    head = now.head if now else None
    if head is not None and head.state is NodeState.RUNNING:
        return None
    if head is None and now is not None and now.unseen:
        warn(f"{', '.join(now.unseen)} did not answer, where the head may be")
        return None
    name = cluster.nodes[0].name
    what = {None: "is gone", NodeState.FROZEN: "is frozen"}.get(head.state if head else None, "has stopped")
    return NodeError(
        f"node {name}, the head, {what}: run {run_id} is lost",
        hint=f"hvdcloud pull --name {cluster.name} fetches the checkpoints that are in the bucket; then hvdcloud down, "
        f"and after another up, hvdcloud run --resume {run_id} continues from them",
    )


def _tell_lost(context: Context, cluster: Cluster, run_id: str, why: str) -> None:
    """Tell that a run was lost with its head, which cannot say so. Whatever fails is a warning."""
    lost = RunState(run=run_id, cluster=cluster.name, state="done", result="lost", reason=why)
    try:
        variable = context.config.notify
        problem = send(address_in(variable), message(lost), attempts=1) if variable else ""
    except UsageError as error:
        problem = error.message
    if problem:
        context.console.warn(f"notify: {problem}; nobody was told that run {run_id} is lost")


def _state_of(head: Session, exit_code: int, said: str) -> RunState:
    """What the head says of a run after its log, as the last line of standard error. Raises NodeError: it could not
    read the log, or says nothing of the run."""
    state = RunState.from_json(head.parse("logs", said, exit_code=exit_code, errors=said))
    if not state.run:
        raise NodeError(
            f"node {head.node.name}: `logs` ended without the state of the run",
            hint=f"hvdcloud ssh {head.node.index} opens a shell there",
            details=log_of(f"node {head.node.name}", said.strip()),
        )
    return state
