"""A cluster as it is at every moment: its nodes, its newest run, what that costs. What `hvdcloud top` shows.

Each node has a thread that asks it over one kept connection, and the provider has one. `view` returns what is known by
then, at once: only its own thread waits for a node that does not answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.cost import dollars_at
from hvdcloud.errors import HvdcloudError
from hvdcloud.json_values import mapping, text
from hvdcloud.remote.ssh import Session
from hvdcloud.runs.failure import told
from hvdcloud.runs.progress import LogReader, Position
from hvdcloud.runs.reports import number
from hvdcloud.runs.state import RunState, read_sample

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster, Node
    from hvdcloud.lifecycle.context import Context

EVERY_SECONDS = 2.0
PROVIDER_SECONDS = 5.0
ANSWER_SECONDS = 10.0
SILENT_SECONDS = 4.5
"""After this long without an answer a node is said not to give one."""
MOST_LINES = 300
_LONGEST_LINE = 1000
"""Characters of a line that are kept, of its beginning and of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node."""

    name: str
    state: str
    """The state that the provider sees; `gone` if it no longer sees one."""
    silent: float | None
    """Seconds without an answer, once there are too many of them."""
    trouble: str
    """Why there is none, if that is known; or why there are no figures of its GPUs."""
    sample: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The newest run."""

    state: RunState
    reason: str
    """Why it ended, or in an active run what it says."""
    seconds: float
    position: Position | None
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything at one moment."""

    cluster: Cluster
    gone: bool
    """The provider no longer has it."""
    age_seconds: float
    dollars_so_far: float | None
    nodes: Sequence[NodeView]
    run: RunView | None
    log: Sequence[str]
    """Its lines since the last view, at most MOST_LINES."""
    notice: str
    """What the provider has to say; empty if it answers."""


class Observer:
    """Watches a cluster until it is closed; only the observer's own thread asks its provider."""

    def __init__(self, context: Context, cluster: Cluster) -> None:
        self._context = context
        self._ending = threading.Event()
        self._known = (cluster, time.time(), False, "")
        """The cluster, when it was seen, whether it is gone since, and the provider's notice: replaced as a whole."""
        self._watches: dict[str, _Watch] = {}

    def __enter__(self) -> Observer:
        self._follow_nodes(self._known[0])
        threading.Thread(target=self._ask_provider, name="provider", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for watch in list(self._watches.values()):
            watch.close()

    def view(self) -> View:
        """What is known, with each line of the log once; never waits."""
        cluster, seen, gone, notice = self._known
        there = {} if gone else {node.name: node.state.value for node in cluster.nodes}
        now = time.time()
        ordered = sorted(self._watches.values(), key=lambda watch: watch.node.index)
        head = ordered[0] if ordered and ordered[0].node.index == 0 else None
        run, log = head.run_view() if head is not None else (None, [])
        return View(
            cluster=cluster,
            gone=gone,
            age_seconds=now - cluster.created.timestamp(),
            dollars_so_far=dollars_at(cluster, seen, until=seen if gone else now),
            nodes=[each.view(there.get(each.node.name, "gone")) for each in ordered],
            run=run,
            log=log,
            notice=notice,
        )

    def _follow_nodes(self, cluster: Cluster) -> None:
        for node in cluster.nodes:
            watch = self._watches.get(node.name)
            if watch is None or (watch.node.id, watch.node.address) != (node.id, node.address):
                self._watches[node.name] = fresh = _Watch(node, Session(node, self._context.state))
                if watch is not None:
                    watch.close()
                fresh.start()

    def _ask_provider(self) -> None:
        while not self._ending.wait(PROVIDER_SECONDS):
            cluster, seen, gone, _ = self._known
            try:
                found = self._context.query()
            except Exception as error:  # noqa: BLE001 - the screen would stop silently; this line says why
                self._known = (cluster, seen, gone, _words(error))
                continue
            self._known = (found or cluster, time.time() if found else seen, found is None, "")
            if found is not None:
                self._follow_nodes(found)


def _words(error: Exception) -> str:
    return error.message if isinstance(error, HvdcloudError) else f"{type(error).__name__}: {error}"


class _Watch:
    """Asks one node, again and again."""

    def __init__(self, node: Node, session: Session) -> None:
        self.node = node
        self._session = session
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._answer: dict[str, Any] = {}
        self._heard = time.monotonic()
        self._trouble = ""
        self._run: str | None = None
        self._offset = 0
        self._fresh: deque[str] = deque(maxlen=MOST_LINES)
        """Lines that no view has had."""
        self._reader = LogReader(elastic=False)

    def start(self) -> None:
        threading.Thread(target=self._work, name=f"watch {self.node.name}", daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        # In a thread: a connection to a frozen machine may take its time to close.
        threading.Thread(target=self._session.close, daemon=True).start()

    def _work(self) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                verb = "look" if not self._offset else f"look --offset {self._offset}"
                answer = self._session.call(verb, timeout=ANSWER_SECONDS)
            except Exception as error:  # noqa: BLE001 - closed under us, or a bug: the node's line says it
                with self._lock:
                    self._trouble = _words(error)
                if isinstance(error, HvdcloudError):
                    self._session.close()
            else:
                with self._lock:
                    self.take(answer)
            self._ending.wait(max(0.2, EVERY_SECONDS - (time.monotonic() - began)))

    def take(self, answer: dict[str, Any]) -> None:
        self._answer, self._heard, self._trouble = answer, time.monotonic(), ""
        if answer.get("run") != self._run:
            another = self._run is not None
            self._run, self._offset = answer.get("run"), 0
            self._fresh.clear()
            self._reader = LogReader(elastic=False)
            if another:
                # Its log was asked for from where the other run's had ended; the next answer has all of it.
                return
        if not (log := mapping(answer.get("log"))):
            return
        if not self._offset:
            # With the log comes the state, which an answer of a moment earlier may have lacked.
            self._reader = LogReader(elastic=RunState.from_json(answer.get("state")).elastic is not None)
        self._offset = int(number(log.get("offset")) or 0)
        said = text(log.get("text"))
        # It ends with a newline.
        lines = said.split("\n")[:-1][-MOST_LINES:]
        self._fresh += [line[:_LONGEST_LINE] + line[_LONGEST_LINE:][-_LONGEST_LINE:] for line in lines]
        self._reader.feed(said.encode(errors="replace"))

    def view(self, state: str) -> NodeView:
        with self._lock:
            silent = time.monotonic() - self._heard
            sample = read_sample(self._answer.get("sample"))
            return NodeView(
                name=self.node.name,
                state=state,
                silent=silent if silent > SILENT_SECONDS else None,
                trouble=self._trouble or str(sample.get("trouble") or ""),
                sample=sample,
            )

    def run_view(self) -> tuple[RunView | None, list[str]]:
        """The newest run, and the lines of its log since the last view."""
        with self._lock:
            answer, lines = self._answer, list(self._fresh)
            self._fresh.clear()
            position, numbers = self._reader.position, dict(self._reader.metrics)
            silent = time.monotonic() - self._heard
            state = RunState.from_json(answer.get("state"))
            failure = self._reader.failure(state)
        if not state.run:
            return None, lines
        now = (number(answer.get("now")) or time.time()) + silent
        began = state.started or now
        view = RunView(
            state=state,
            reason=failure.reason if failure is not None else told(state),
            seconds=max(0.0, (state.ended or now) - began),
            position=position,
            numbers=numbers,
        )
        return view, lines
