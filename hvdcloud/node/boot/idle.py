"""Idle nodes end themselves: `limits.idle`, from boot, whether or not the laptop is on.

A process beside the entrypoint checks for activity at intervals. When the limit is over, the head decides for the whole
cluster and asks the other nodes; they decide for themselves alone, and only where the head does not answer. Nothing
ends while a checkpoint is not in the bucket.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvdcloud.node import machine
from hvdcloud.node.boot import activity
from hvdcloud.node.mesh import ssh
from hvdcloud.node.mesh.nodes import node_names
from hvdcloud.node.run import control
from hvdcloud.node.uploads.loop import incomplete_runs
from hvdcloud.storage.threads import parallel

CHECK_SECONDS = 15.0
ASK_SECONDS = 60.0
"""How often a node that is idle asks the others whether they are."""
HEAD_ATTEMPTS = 3
"""A head that does not answer this often, with pauses, is dead."""
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
_AT_ONCE = 32
_FROZEN_SECONDS = 5.0


class Answer(NamedTuple):
    """What a node says about its activity."""

    idle: float | None
    """Seconds without activity; None: it has none, and no idle limit."""
    complete: bool
    """Every checkpoint is in the bucket."""


_BUSY = Answer(idle=0.0, complete=False)


def may_end(own: Answer, *, limit: float, head: bool, peers: Mapping[str, Answer | None]) -> bool:
    """Whether this node ends now, as the head its cluster too. Pure.

    Args:
        own: this node's answer.
        limit: seconds without activity after which a node is idle.
        head: this node is the head, or alone.
        peers: for the head, every other node's answer; for another node, the head's. None: it does not answer.
    """
    if own.idle is None or own.idle < limit or not own.complete:
        return False
    if not head:
        return not any(peers.values())
    return all(peer.complete and (peer.idle is None or peer.idle >= limit) for peer in peers.values() if peer)


def answer() -> dict[str, Any]:
    """The answer of `idle`, which other nodes of the cluster ask for."""
    return _own()._asdict()


def main(limit: float) -> int:
    """`end-when-idle LIMIT`: check for activity until there was none for so many seconds, and end the cluster then, or
    this node alone. Returns the process's exit code, always 0."""
    every, pause = min(CHECK_SECONDS, limit / 4), min(ASK_SECONDS, limit / 4)
    checked_at, act_at = time.monotonic(), 0.0
    while True:
        idle, now = activity.idle_seconds(), time.monotonic()
        # A process that was frozen has missed what happened meanwhile.
        frozen = now - checked_at > 2 * every + _FROZEN_SECONDS
        if idle is None or frozen or activity.is_there():
            activity.mark()
        elif idle >= limit and now >= act_at:
            if end_if_idle(limit):
                return 0
            act_at = time.monotonic() + pause
        checked_at = time.monotonic()
        time.sleep(every)


def end_if_idle(limit: float) -> bool:
    """End the cluster, or this node alone, if it is time; returns whether it was."""
    from hvdcloud.node.mesh import poweroff

    names, me = node_names(), machine.name()
    head = not names or me == names[0]
    idle = activity.idle_seconds() or limit
    in_words = f"{idle / 60:.0f} min" if idle >= 60 else f"{idle:.0f} s"
    for_how_long = f"idle for {in_words}: no run, no SSH session"
    if left := incomplete_runs():
        # That takes long; there may be activity by then.
        _flush(for_how_long, left)
        return False
    peers: dict[str, Answer | None] = {}
    if may_end(_own(), limit=limit, head=True, peers={}):
        peers = _answers_of([name for name in names if name != me]) if head else _answer_of_head(names[0], limit)
    # Checked again: there may be activity by now.
    if not may_end(_own(), limit=limit, head=head, peers=peers):
        return False
    poweroff.write_line(f"{for_how_long}; switching off")
    if head:
        # A node that did not answer may hold what is nowhere else; it ends itself when the head is gone.
        poweroff.end_others([name for name, peer in peers.items() if peer])
    poweroff.switch_off()
    return True


def _own() -> Answer:
    return Answer(idle=0.0 if activity.is_there() else activity.idle_seconds(), complete=not incomplete_runs())


def _flush(for_how_long: str, runs: Sequence[str]) -> None:
    from hvdcloud.node.mesh import poweroff

    answers = control.flush()["runs"]
    errors = [error for report in answers.values() for error in report["errors"]]
    if left := incomplete_runs():
        why = f": {errors[0]}" if errors else ""
        poweroff.write_line(f"{for_how_long}; but checkpoints of run {', '.join(left)} are not in the bucket yet{why}")
    else:
        poweroff.write_line(f"the checkpoints of run {', '.join(runs)} are in the bucket now")


def _answers_of(nodes: Sequence[str]) -> dict[str, Answer | None]:
    outcomes = parallel(nodes, _answer_of, workers=_AT_ONCE)
    return {each.item: each.result if each.error is None else _BUSY for each in outcomes}


def _answer_of_head(head: str, limit: float) -> dict[str, Answer | None]:
    found = _answer_of(head)
    for _ in range(HEAD_ATTEMPTS - 1):
        if found is None:
            time.sleep(min(CHECK_SECONDS, limit / 4))
            found = _answer_of(head)
    return {head: found}


def _answer_of(node: str) -> Answer | None:
    """A node's answer; None: it cannot be reached. Any other failure counts as busy."""
    command = ssh.node_command(node, "idle", connect_seconds=_CONNECT_SECONDS)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == ssh.FAILED:
        return None
    try:
        return Answer(**json.loads(done.stdout))
    except (TypeError, ValueError):
        return _BUSY
