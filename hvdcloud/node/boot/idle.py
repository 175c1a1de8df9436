"""Idle nodes end themselves: `limits.idle`, from boot, whether or not the laptop is on.

The entrypoint checks for activity at intervals (`Watch`). When the limit is over it starts `end-if-idle`, a process
that decides and acts. The head decides for the whole cluster and asks the other nodes; they decide for themselves
alone, and only where the head does not answer. Nothing ends while a checkpoint is not in the bucket.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvdcloud.node import machine
from hvdcloud.node.boot import activity
from hvdcloud.node.boot.limit import NodeLimit
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


class Watch(NodeLimit):
    """Checks for activity in the container's first process.

    Args:
        limit: seconds without activity after which the node is idle.
    """

    variable = "HVDCLOUD_IDLE"

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self._every = min(CHECK_SECONDS, limit / 4)
        self._checked_at = time.monotonic()
        self._pause = max(self._every, min(ASK_SECONDS, limit / 4))
        self._act_at = 0.0
        activity.mark()

    def _check(self) -> None:
        now = time.monotonic()
        if now < self._checked_at + self._every:
            return
        # A process that was frozen has missed what happened meanwhile.
        frozen = now - self._checked_at > 2 * self._every + _FROZEN_SECONDS
        self._checked_at = now
        if frozen or activity.now() is not None:
            activity.mark()
        idle = activity.idle_seconds()
        if idle is None:
            activity.mark()
        elif idle >= self.limit and self._actor is None and now >= self._act_at:
            self._act_at = now + self._pause
            self._act("end-if-idle")


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


def end_if_idle() -> int:
    """`end-if-idle`: end the cluster, or this node alone, if it is time. Returns the process's exit code, always 0."""
    from hvdcloud.node.mesh import poweroff

    limit = float(os.environ[Watch.variable])
    names, me = node_names(), machine.name()
    head = not names or me == names[0]
    idle = activity.idle_seconds() or limit
    in_words = f"{idle / 60:.0f} min" if idle >= 60 else f"{idle:.0f} s"
    for_how_long = f"idle for {in_words}: no run, no SSH session"
    if left := incomplete_runs():
        _flush(for_how_long, left)
    peers: dict[str, Answer | None] = {}
    if may_end(_own(), limit=limit, head=True, peers={}):
        peers = _answers_of([name for name in names if name != me]) if head else _answer_of_head(names[0], limit)
    # Checked again: there may be activity by now.
    if not may_end(_own(), limit=limit, head=head, peers=peers):
        return 0
    poweroff.write_line(f"{for_how_long}; switching off")
    if head:
        # A node that did not answer may hold what is nowhere else; it ends itself when the head is gone.
        poweroff.end_others([name for name, peer in peers.items() if peer])
    poweroff.switch_off()
    return 0


def _own() -> Answer:
    return Answer(idle=0.0 if activity.now() else activity.idle_seconds(), complete=not incomplete_runs())


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
