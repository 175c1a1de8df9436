"""`admit` and `dismiss`: nodes join an elastic run, and leave it.

The supervisor listens on a Unix socket on the head, one JSON line each way; the answer to `dismiss` comes when the
nodes have left.
"""

from __future__ import annotations

import json
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import channel, paths
from hvdcloud.node.channel import Caller, Listener
from hvdcloud.node.elastic.membership import Membership, Place
from hvdcloud.node.elastic.workers import Workers
from hvdcloud.node.records import active
from hvdcloud.node.run.lease import Lease
from hvdcloud.node.run.recorder import Recorder
from hvdcloud.units import counted

SECONDS = 600.0
"""How long the checkpoints of nodes that leave may take."""
LEAVE_SECONDS = 60.0
"""How long a node that was dismissed may keep its workers before they are ended, or until the list may change."""


def socket_file(run: str) -> Path:
    """The socket of the supervisor of an elastic run."""
    return paths.secret_dir(run) / "supervisor.sock"


def ask(run: str, request: dict[str, Any]) -> dict[str, Any]:
    """The supervisor's answer to a request.

    Raises:
        UsageError: the run has ended, is not elastic, or refuses.
        NodeError: the supervisor does not answer.
    """
    if active.supervised(run) is None:
        raise UsageError(f"run {run} has ended", hint="hvdcloud status shows it")
    if not socket_file(run).exists():
        raise UsageError(f"run {run} is not elastic", hint="with run.elastic in hvdcloud.yaml, the next run is")
    try:
        message = channel.ask(socket_file(run), request, deadline=time.monotonic() + SECONDS)
    except TimeoutError:
        message = None
    if message is None:
        hint = "hvdcloud status shows whether the run is active"
        raise NodeError(f"the supervisor of run {run} did not answer to {json.dumps(request.get('type'))}", hint=hint)
    if "error" in message:
        raise UsageError(str(message["error"]), hint=str(message.get("hint", "hvdcloud status")))
    return {"ok": True, **message}


@dataclass
class _Dismissal:
    """Nodes that were asked to leave, and the connection that waits for it."""

    caller: Caller
    nodes: set[str]
    began: float
    """Monotonic seconds."""
    told: set[str] = field(default_factory=set)
    """Nodes whose agents got the order to finish."""


@dataclass(kw_only=True, eq=False)
class Admission:
    """Hears and answers the requests, and ends the part of nodes that were dismissed."""

    run: str
    selector: selectors.BaseSelector
    head: str
    membership: Membership
    workers: Workers
    leases: Mapping[str, Lease]
    """Of the nodes' agents, by name."""
    recorder: Recorder
    replaced: Callable[[str], None]
    """Called with a node that is admitted, before its new agent is started."""

    def __post_init__(self) -> None:
        self._dismissals: list[_Dismissal] = []
        self._socket = Listener(socket_file(self.run), self.selector, kind=Caller, hear=self._hear)

    def _hear(self, caller: Caller) -> None:
        messages = caller.channel.receive()
        if messages or caller.channel.closed:
            self._socket.forget(caller)
            self._answer(messages[0] if messages else {}, caller)

    def _answer(self, message: Mapping[str, Any], caller: Caller) -> None:
        """Take a request; the answer to a dismissal comes when its nodes have left."""
        try:
            if message.get("type") == "admit":
                problem = self._admit(message["hosts"])
            elif not (problem := self._dismiss(message["nodes"], caller)):
                return
        except (KeyError, TypeError, ValueError) as error:
            problem = f"the request cannot be used: {error!r}"
        caller.answer({"error": problem} if problem else {"ok": True})

    def _admit(self, hosts: list[Mapping[str, Any]]) -> str:
        """Let nodes take part that are new, or were replaced. Returns why they cannot; empty if they can."""
        for host in hosts:
            name = str(host["name"])
            if name == self.head:
                return f"{name} is the head, which is not replaced"
            self.replaced(name)
            self.membership.admit(name, index=int(host["index"]), slots=int(host["slots"]))
            self.recorder.joined(name)
        return ""

    def see_off(self, *, now: float) -> None:
        """End the agents of dismissed nodes whose workers have ended, and answer when all are gone."""
        for dismissal in list(self._dismissals):
            late = now - dismissal.began > LEAVE_SECONDS and self.membership.settled(now=now)
            for node in dismissal.nodes - dismissal.told:
                lease = self.leases.get(node)
                unused = not self.membership.is_listed(node) and node not in self.workers.nodes()
                if lease is not None and (late or unused):
                    dismissal.told.add(node)
                    lease.finish()
            if dismissal.nodes.isdisjoint(self.leases):
                self._dismissals.remove(dismissal)
                self.recorder.left(dismissal.nodes)
                # Whoever asked looks at the state next.
                self.recorder.members(self.membership.shown())
                dismissal.caller.answer({"ok": True})

    def end(self) -> None:
        """Take no more requests, and answer those that still wait: the run has ended."""
        for dismissal in self._dismissals:
            dismissal.caller.answer({"error": "the run has ended"})
        self._socket.close()

    def _dismiss(self, names: list[Any], caller: Caller) -> str:
        nodes = {str(node) for node in names}
        if self.head in nodes:
            return f"{self.head} is the head, which drives the run"
        if unknown := sorted(nodes - self.membership.members.keys()):
            return f"{unknown[0]} takes no part in this run"
        if not self.membership.may_leave(nodes):
            least = counted(self.membership.least, "node")
            return f"fewer than {least} would train, the minimum of run.elastic"
        self._dismissals.append(_Dismissal(caller, nodes, began=time.monotonic()))
        for node in sorted(nodes):
            if node not in self.leases:
                self.membership.move(node, Place.GONE, "dismissed")
            elif self.membership.members[node].place is not Place.LEAVING:
                self.membership.move(node, Place.LEAVING, "dismissed")
                self.recorder.event("node leaves", node, "dismissed", note=f"node {node} leaves the run")
        return ""
