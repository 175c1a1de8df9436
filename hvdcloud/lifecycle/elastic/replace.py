"""While an elastic run is followed, its lost nodes are replaced.

A node is lost when the provider calls it stopped, or twice calls it gone: many come back. One that is frozen, or that
the head cannot reach, may come back with all that it holds, and the head then takes it back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.errors import CredentialsError, HvdcloudError, NameTakenError, TeardownError, UsageError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.context import STATE_SECONDS
from hvdcloud.lifecycle.resize import add_nodes
from hvdcloud.providers.base import NodeProgress, Stage
from hvdcloud.remote.join import spec_of
from hvdcloud.runs.state import RunState
from hvdcloud.visible import says

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context

CHECK_SECONDS = 3.0
"""Between two questions to the provider."""
PAUSE_SECONDS = 30.0
"""After a failure: where there is no room now, there may be some in a few minutes."""


@contextlib.contextmanager
def replacing(context: Context, run_id: str, *, elastic: bool) -> Iterator[None]:
    """Replace lost nodes during the block, which follows an elastic run; at its end nothing half-made is left."""
    if not elastic:
        yield
        return
    replacer = Replacer(context, run_id)
    try:
        yield
    finally:
        with uninterrupted():
            replacer.close()


class _AbandonedError(Exception):
    """The run has ended, or is no longer followed."""


class Replacer:
    """Watches for lost nodes of an active elastic run, in a thread of its own, and replaces them."""

    def __init__(self, context: Context, run_id: str) -> None:
        self._context = context
        self._run = run_id
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="replace nodes", daemon=True)
        self._lost: Sequence[int] = ()
        """The lost nodes, by the provider's last answer."""
        self._not_before = 0.0
        """Until then no attempt is made."""
        self._said: set[str] = set()
        """The lines about the lost nodes, until all are back."""
        self._making: Sequence[int] = ()
        self._booting = threading.Event()
        """What is being made exists, and nothing but its deletion ends the wait for it."""
        self._thread.start()

    def close(self) -> None:
        """End; what is half-made then is deleted."""
        self._ending.set()
        making = [f"{self._context.name}-{index}" for index in self._making]
        if making:
            self._context.console.say(f"deleting {', '.join(making)}, which was not ready yet; please wait")
        while self._thread.is_alive():
            if self._booting.wait(0.2):
                # Ends the wait for it; the thread deletes what is left of it and takes it out of the record.
                with contextlib.suppress(HvdcloudError):
                    self._context.provider.shrink(self._context.name, self._making)
                self._thread.join()
            self._thread.join(0.2)

    def _work(self) -> None:
        while not self._ending.wait(CHECK_SECONDS):
            try:
                if not self._check():
                    return
            except _AbandonedError:
                return
            except HvdcloudError as error:
                # A limit of the user's, or a right that is missing: waiting changes neither. But a name that is taken
                # may be that of the lost node, which the user has just started again.
                why = error.message.splitlines()[0]
                if isinstance(error, (UsageError, CredentialsError)) and not isinstance(error, NameTakenError):
                    self._give_up(why)
                    return
                self._not_before = time.monotonic() + PAUSE_SECONDS
                # What could not be deleted has been said.
                if not self._ending.is_set() and not isinstance(error, TeardownError):
                    names = ", ".join(f"{self._context.name}-{index}" for index in self._lost)
                    nodes = f"node {names} could not be replaced: " if names else ""
                    self._say_once(f"{nodes}{why}; trying again from time to time", self._context.console.warn)
            except Exception as error:  # noqa: BLE001 - the run is followed all the same; this line says what is missing
                self._give_up(f"{type(error).__name__}: {error}")
                return

    def _give_up(self, why: str) -> None:
        if not self._ending.is_set():
            said = f"lost nodes are not replaced: {why}; the run continues with the nodes that it has"
            self._context.console.warn(said)

    def _say_once(self, text: str, say: Callable[[str], None]) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)

    def _check(self) -> bool:
        """Replace what is due. Returns False when there is nothing left to do for this run."""
        cluster = self._context.query()
        if cluster is None or cluster.head is None or cluster.head.state is not NodeState.RUNNING or cluster.unseen:
            # The command that follows the run says that the head is gone; a node may be where nothing answers.
            return True
        before, self._lost = self._lost, self._lost_nodes(cluster)
        if [*before] != self._lost:
            self._not_before = 0.0
        there = {node.index for node in cluster.nodes}
        certain = {index for index in self._lost if index in there or index in before}
        if not certain or time.monotonic() < self._not_before:
            return True
        answer = self._context.fleet(cluster).head.call("state", timeout=STATE_SECONDS)
        states = RunState.all_from_json(answer.get("runs"))
        state = next((each for each in states if each.run == self._run), RunState())
        limits = state.elastic
        if state.done or limits is None:
            return False
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._context.state.lock("run, which replaces lost nodes"))
            except UsageError:
                # Another command, such as `resize`, is changing the cluster.
                return True
            now = self._context.query()
            if now is None or now.unseen:
                return True
            due = [index for index in self._lost_nodes(now) if limits.max is None or index < limits.max]
            if certain.intersection(due):
                self._replace(now, due, state)
        return True

    def _lost_nodes(self, cluster: Cluster) -> list[int]:
        """The nodes, never the head, that do not exist, do not run, or were left half-made."""
        record = self._context.state.record_of(cluster.id)
        there = {node.index: node for node in cluster.nodes}

        def is_lost(node: Node | None) -> bool:
            return node is None or node.state is NodeState.STOPPED or not (record and record.has_joined(node.name))

        lost = [index for index in range(1, cluster.expected_nodes) if record and is_lost(there.get(index))]
        if not lost:
            self._said.clear()
        return lost

    def _replace(self, cluster: Cluster, lost: Sequence[int], state: RunState) -> None:
        context = self._context
        why = {member.name: says("the head", member.why) for member in state.members if member.why}
        there = {node.index: node for node in cluster.nodes}
        spec = spec_of(context.state, cluster, nodes=cluster.expected_nodes)
        names = [spec.node_name(index) for index in lost]
        for index, name in zip(lost, names, strict=True):
            known = f" ({why[name]})" if name in why else ""
            text = f"node {name} {'has stopped' if index in there else 'is gone'}{known}; replacing it"
            self._say_once(text, context.console.say)
        self._making = lost
        try:
            hooks = {"on_made": self._booting.set, "on_ready": self._ready}
            add_nodes(context, cluster, spec, lost, run=state, on_progress=self._continue_at, **hooks)
        except TeardownError as error:
            context.console.warn(f"{error.message}; {error.hint}")
            raise
        finally:
            self._booting.clear()
            self._making = ()
        self._lost = ()
        for name in names:
            context.console.say(f"node {name} is back")

    def _continue_at(self, progress: NodeProgress | None = None) -> None:
        # A deletion is never cut short: it is what abandoning means.
        if self._ending.is_set() and not (progress and progress.stage is Stage.DELETED):
            raise _AbandonedError

    def _ready(self) -> None:
        self._booting.clear()
        self._continue_at()
