"""While an elastic run is followed: nodes that are gone are made anew.

Only what the provider calls gone or stopped is replaced. A node that is frozen, or that the head cannot reach, may come
back with all that it holds, and the head takes it back by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, TeardownError, UsageError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.resize import Change, add_nodes
from hvdcloud.providers.base import NodeProgress, Stage
from hvdcloud.remote.join import spec_of

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context

LOOK_SECONDS = 3.0
"""How often the provider is asked."""
FIRST_PAUSE_SECONDS, PAUSE_SECONDS, PAUSE_GROWTH = 10.0, 300.0, 1.6
"""After a failure. Where there is no room now, there may be some in a few minutes."""
STATE_SECONDS = 20.0


@contextlib.contextmanager
def replacing(context: Context, run_id: str, *, elastic: bool) -> Iterator[None]:
    """In this block, which follows a run, its nodes that are gone are made anew; at its end nothing half-made is left.

    Args:
        elastic: False: nothing is done.
    """
    if not elastic:
        yield
        return
    replacer = Replacer(context, run_id)
    replacer.start()
    try:
        yield
    finally:
        with uninterrupted():
            replacer.close()


class _AbandonedError(Exception):
    """The run has ended, or nobody follows it any more."""


class Replacer:
    """Looks for nodes that are gone, in a thread of its own, and makes them anew.

    Args:
        run_id: an elastic run that goes on.
        look_seconds: how often to look.
    """

    def __init__(self, context: Context, run_id: str, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._context = context
        self._run = run_id
        self._look_seconds = look_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="replace nodes", daemon=True)
        self._missed: set[int] = set()
        """Missing when it was looked last: once may be a look that came at a bad moment."""
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._said: set[str] = set()
        self._making: Sequence[int] = ()
        self._booting = threading.Event()
        """What is being made is there, and nothing but its deletion ends the wait for it."""

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End; what is half-made then is deleted."""
        self._ending.set()
        making = [f"{self._context.name}-{index}" for index in self._making]
        if making:
            self._context.console.say(f"deleting {', '.join(making)}, which was not ready yet; please wait")
        while self._thread.is_alive():
            if self._booting.wait(0.2):
                # Ends the wait for it; the thread deletes what is left of it and takes it out of the books.
                with contextlib.suppress(HvdcloudError):
                    self._context.provider.shrink(self._context.name, self._making)
                self._thread.join()
            self._thread.join(0.2)

    def _work(self) -> None:
        while not self._ending.wait(self._look_seconds):
            try:
                if not self._tick():
                    return
            except _AbandonedError:
                return
            except (CapacityError, UsageError, CredentialsError) as error:
                if not isinstance(error, CapacityError):
                    # A limit of the user's, or a right that is missing: waiting changes neither.
                    self._context.console.warn(f"{error.message}; the run goes on with the nodes that it has")
                    return
                self._put_off(error)
            except HvdcloudError as error:
                self._put_off(error)
            except Exception as error:  # noqa: BLE001 - the run is followed all the same; this line says what is missing
                self._context.console.warn(f"lost nodes are not replaced any more: {type(error).__name__}: {error}")
                return

    def _put_off(self, error: HvdcloudError) -> None:
        self._not_before = time.monotonic() + self._pause
        self._pause = min(self._pause * PAUSE_GROWTH, PAUSE_SECONDS)
        if self._ending.is_set() or isinstance(error, TeardownError):
            return
        text = error.message.splitlines()[0]
        if text not in self._said:
            self._said.add(text)
            self._context.console.warn(f"{text}; trying again from time to time while the run goes on")

    def _tick(self) -> bool:
        """Returns False when there is nothing left to do for this run."""
        if time.monotonic() < self._not_before:
            return True
        cluster = self._context.look()
        if cluster is None or cluster.unseen or cluster.head is None or cluster.head.state is not NodeState.RUNNING:
            # Whoever follows the run says so.
            return True
        if not self._lost(cluster):
            self._missed = set()
            return True
        if not self._is_sure(cluster):
            return True
        state = self._state()
        limits = state.get("elastic")
        if state.get("state") == "done" or not limits:
            return False
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._context.state.lock("run, which makes lost nodes anew"))
            except UsageError:
                # Another command, such as `resize`, is changing the cluster.
                return True
            now = self._context.look()
            # The head has begun with these while nobody followed the run.
            making = state.get("making") or ()
            lost = self._lost(now) if now is not None else []
            lost = [index for index in lost if f"{self._context.name}-{index}" not in making]
            lost = [index for index in lost if index < int(limits["max"])]
            if now is not None and lost:
                self._replace(now, lost, state)
        return True

    def _lost(self, cluster: Cluster) -> list[int]:
        """Nodes of the cluster, never the head, that are not there, do not run, or were left half-made."""
        record = self._context.state.record_of(cluster.id)
        if record is None:
            return []
        there = {node.index: node for node in cluster.nodes}

        def is_lost(node: Node | None) -> bool:
            return node is None or node.state is NodeState.STOPPED or not record.has_joined(node.name)

        return [index for index in range(1, cluster.expected_nodes) if is_lost(there.get(index))]

    def _is_sure(self, cluster: Cluster) -> bool:
        """Whether something of it has stopped, or is missing for the second time."""
        there = {node.index for node in cluster.nodes}
        missing = set(self._lost(cluster)) - there
        sure = bool(set(self._lost(cluster)) & there) or bool(missing & self._missed)
        self._missed = missing
        return sure

    def _state(self) -> dict[str, Any]:
        """Of the run, as the head knows it; empty if it knows no such run."""
        with self._context.head(self._context.name) as head:
            states: list[dict[str, Any]] = head.call("state", timeout=STATE_SECONDS)["runs"]
        return next((state for state in states if state["run"] == self._run), {})

    def _replace(self, cluster: Cluster, lost: Sequence[int], state: Mapping[str, Any]) -> None:
        context = self._context
        why = {str(member["name"]): str(member.get("why") or "") for member in state.get("members") or ()}
        there = {node.index: node for node in cluster.nodes}
        spec = spec_of(context.state, cluster, nodes=cluster.expected_nodes)
        names = [spec.node_name(index) for index in lost]
        record = context.record(cluster)
        for index, name in zip(lost, names, strict=True):
            what = "has stopped" if index in there else "is gone"
            reason = f" ({why[name]})" if why.get(name) else ""
            text = f"node {name} {what}{reason}; making it anew"
            if text not in self._said:
                self._said.add(text)
                context.console.say(text)
        change = Change(
            make=tuple(lost),
            clear=tuple(
                index
                for index in lost
                if index in there
                and there[index].state is not NodeState.STOPPED
                and not record.has_joined(there[index].name)
            ),
            remove=(),
        )
        stay = [node for node in cluster.nodes if node.index not in lost]
        self._making = lost
        try:
            add_nodes(
                context,
                spec,
                change,
                stay,
                run=state,
                on_progress=self._check,
                on_made=self._booting.set,
                on_ready=self._ready,
            )
        except TeardownError as error:
            context.console.warn(f"{error.message}; {error.hint}")
            raise
        finally:
            self._booting.clear()
            self._making = ()
        self._pause, self._not_before, self._missed = FIRST_PAUSE_SECONDS, 0.0, set()
        self._said.clear()
        for name in names:
            context.console.say(f"node {name} is back")

    def _check(self, progress: NodeProgress) -> None:
        # A deletion is never cut short: it is what abandoning means.
        if progress.stage is not Stage.DELETED:
            self._go_on()

    def _go_on(self) -> None:
        if self._ending.is_set():
            raise _AbandonedError

    def _ready(self) -> None:
        self._booting.clear()
        self._go_on()
