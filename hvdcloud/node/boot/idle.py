"""Nodes on which nothing goes on end themselves: `limits.idle`, from boot, whether or not the laptop is awake.

The entrypoint looks now and then (`Watch`). When the limit is over it starts `end-if-idle`, a process that decides and
acts. The head decides for the whole cluster and asks the other nodes; they decide for themselves alone, and only where
the head does not answer. Nothing ends while a checkpoint is not in the bucket.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hvdcloud.node import paths
from hvdcloud.node.boot import activity, machine

LIMIT_VARIABLE = "HVDCLOUD_IDLE"
LOOK_SECONDS = 15.0
ASK_SECONDS = 60.0
"""How often a cluster that is idle here is asked whether it is idle elsewhere."""
LONGEST_PAUSE = 300.0
HEAD_ATTEMPTS = 3
"""A head that does not answer so often, with pauses, is dead."""
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
_AT_ONCE = 32
_FROZEN_SECONDS = 5.0


class Watch:
    """The entrypoint's part: light enough for a container's first process.

    Args:
        limit: seconds without activity after which the node is idle.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._every = min(LOOK_SECONDS, limit / 4)
        self._looked = time.monotonic()
        self._pause = self._first_pause = max(self._every, min(ASK_SECONDS, limit / 4))
        self._act_at = 0.0
        self._actor: int | None = None
        activity.mark()

    @classmethod
    def wanted(cls) -> Watch | None:
        """As the container's environment asks for; None: never idle.

        Raises:
            ValueError: it is not a number of seconds.
        """
        text = os.environ.get(LIMIT_VARIABLE)
        return cls(max(1.0, float(text))) if text else None

    def seconds(self) -> float:
        """Until it is time to look."""
        return max(0.0, self._looked + self._every - time.monotonic())

    def ended(self, children: set[int]) -> None:
        """These processes have ended."""
        if self._actor in children:
            self._actor = None

    def look(self) -> None:
        """If it is time: note what goes on, and act once the limit is over. Never raises."""
        if self.seconds() > 0.0:
            return
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the first process of a container must not end for this
            sys.stderr.write(f"hvdcloud: could not look for activity: {type(error).__name__}: {error}\n")
            sys.stderr.flush()

    def _look(self) -> None:
        now = time.monotonic()
        # Who was frozen has missed who came and went.
        frozen = now - self._looked > 2 * self._every + _FROZEN_SECONDS
        self._looked = now
        if frozen or activity.now() is not None:
            activity.mark()
        idle = activity.idle_seconds()
        if idle is None:
            activity.mark()
        elif idle < self.limit:
            self._pause = self._first_pause
        elif self._actor is None and now >= self._act_at:
            self._act_at = now + self._pause
            self._pause = min(2 * self._pause, max(LONGEST_PAUSE, self._first_pause))
            program = [sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", "hvdcloud.node", "end-if-idle"]
            self._actor = os.posix_spawn(sys.executable, program, os.environ, setsigmask=())


class Answer(NamedTuple):
    """How idle a node is."""

    idle: float | None
    """Seconds; None: nobody watches there, and nothing goes on."""
    complete: bool
    """Every checkpoint is in the bucket."""


class Verdict(Enum):
    """What a node that looks idle is to do."""

    WAIT = "wait"
    FLUSH = "flush"
    END = "end"


def verdict(own: Answer, *, limit: float, head: bool, peers: Mapping[str, Answer | None]) -> Verdict:
    """Decide.

    Args:
        own: this node.
        limit: seconds.
        head: this node is the head, or alone.
        peers: for the head, every other node; for another node, the head. None: it does not answer.
    """
    if own.idle is None or own.idle < limit:
        return Verdict.WAIT
    if not own.complete:
        return Verdict.FLUSH
    if not head:
        return Verdict.WAIT if any(peers.values()) else Verdict.END
    busy = any(peer and not (peer.complete and (peer.idle is None or peer.idle >= limit)) for peer in peers.values())
    return Verdict.WAIT if busy else Verdict.END


def answer() -> dict[str, Any]:
    """`idle`: what another node of the cluster wants to know."""
    seconds = activity.idle_seconds()
    if activity.now() is not None:
        seconds = 0.0
    return Answer(idle=seconds, complete=not _incomplete())._asdict()


def end_if_idle() -> int:
    """`end-if-idle`: end the cluster, or this node alone, if it is time.

    Returns:
        The process's exit code, always 0.
    """
    from hvdcloud.node.boot import poweroff

    limit = float(os.environ[LIMIT_VARIABLE])
    names, me = activity.mesh(), machine.name()
    head = not names or me == names[0]
    for_how_long = f"idle for {_spoken(activity.idle_seconds() or limit)}: no run, no SSH session"
    if left := _incomplete():
        _flush(for_how_long, left)
    peers: dict[str, Answer | None] = {}
    if verdict(_own(), limit=limit, head=True, peers={}) is Verdict.END:
        peers = _ask_all([name for name in names if name != me]) if head else _ask_head(names[0], limit)
    # Asked again: somebody may have come meanwhile.
    if verdict(_own(), limit=limit, head=head, peers=peers) is not Verdict.END:
        return 0
    poweroff.say(f"{for_how_long}; {poweroff.way()}")
    # A node that did not answer may hold what is nowhere else; it ends itself when the head is gone.
    if head and (refusal := poweroff.end_others([name for name, peer in peers.items() if peer])):
        poweroff.say(refusal.consequence)
    if refusal := poweroff.delete_this_one():
        poweroff.say(refusal.consequence)
    poweroff.wait_for_the_end(refusal)
    return 0


def _own() -> Answer:
    return Answer(idle=0.0 if activity.now() else activity.idle_seconds(), complete=not _incomplete())


def _incomplete() -> list[str]:
    from hvdcloud.node.uploads.loop import is_complete

    return sorted(folder.name for folder in paths.runs_dir().glob("*") if not is_complete(folder.name))


def _flush(for_how_long: str, runs: Sequence[str]) -> None:
    from hvdcloud.node.boot import poweroff
    from hvdcloud.node.run import control

    answers = control.flush()["runs"]
    errors = [error for report in answers.values() for error in report["errors"]]
    if left := _incomplete():
        why = f": {errors[0]}" if errors else ""
        poweroff.say(f"{for_how_long}; but checkpoints of run {', '.join(left)} are not in the bucket yet{why}")
    else:
        poweroff.say(f"the checkpoints of run {', '.join(runs)} are in the bucket now")


def _ask_all(nodes: Sequence[str]) -> dict[str, Answer | None]:
    from concurrent.futures import ThreadPoolExecutor

    if not nodes:
        return {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(nodes))) as pool:
        return dict(zip(nodes, pool.map(_ask, nodes), strict=True))


def _ask_head(head: str, limit: float) -> dict[str, Answer | None]:
    found = None
    for attempt in range(HEAD_ATTEMPTS):
        if attempt:
            time.sleep(min(LOOK_SECONDS, limit / 4))
        if (found := _ask(head)) is not None:
            break
    return {head: found}


def _ask(node: str) -> Answer | None:
    """None: it cannot be reached. What else goes wrong counts as busy."""
    import subprocess

    from hvdcloud.node.mesh import ssh

    try:
        done = subprocess.run(
            ssh.node_command(node, "idle", connect_seconds=_CONNECT_SECONDS),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == ssh.FAILED:
        return None
    try:
        return Answer(**json.loads(done.stdout))
    except (TypeError, ValueError):
        return Answer(idle=0.0, complete=False)


def _spoken(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
