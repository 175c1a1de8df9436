"""Commands and verbs of the node program, which run on the nodes over SSH; what they say, and how they end."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from invoke.exceptions import CommandTimedOut, ThreadException

from hvdcloud.errors import HvdcloudError, NodeError, first_of
from hvdcloud.json_values import parse_object
from hvdcloud.parallel import side_by_side
from hvdcloud.remote.connection import LOSSES, NodeConnection
from hvdcloud.units import size
from hvdcloud.visible import log_of, says, words

if TYPE_CHECKING:
    from fabric import Result
    from paramiko import Channel

    from hvdcloud.cluster.model import Node
    from hvdcloud.cluster.state import ClusterState

R = TypeVar("R")

NODE_PROGRAM = "hvdcloud-node"
CHECK_SECONDS = 10.0
"""How long a node may say nothing, while something waits for it, until it is asked whether it is still there."""
ANSWER_SECONDS = 30.0
"""How long its sshd may take to say so, also behind a few MB that a slow line is still sending."""
MOST_ANSWER = 64 << 20
"""Bytes that a command may answer; a node that sends more is not believed."""
MOST_ERRORS = 4 << 20
"""Bytes that are kept of the end of what a streamed command says beside its output."""
CHUNK = 1 << 16
_PAUSE_SECONDS = 0.5


class Session(NodeConnection):
    """Runs commands on one node. Safe to use from several threads."""

    def __init__(self, node: Node, state: ClusterState) -> None:
        super().__init__(node, state)
        self._heard = 0.0  # When the node last said something, by `time.monotonic()`.

    def run(self, command: str, *, stdin: str = "", timeout: float = 60.0, what: str = "") -> Result:
        """Run a command for the node's shell to its end; returns Fabric's result.

        Args:
            what: names it in errors; default: its first word.

        Raises:
            NodeError: no answer in `timeout` seconds, one above MOST_ANSWER, or the connection broke.
        """
        what, deadline = what or command.split()[0], time.monotonic() + timeout
        connection = self.open(within=timeout)
        streams = {"out_stream": _Heard(self, what), "err_stream": _Heard(self, what)}
        with self.losses(), self.watched():
            try:
                result = connection.run(
                    command,
                    hide=True,
                    warn=True,
                    encoding="utf-8",
                    in_stream=io.StringIO(stdin),
                    timeout=max(0.1, deadline - time.monotonic()),
                    **streams,
                )
            except CommandTimedOut:
                raise NodeError(
                    f"node {self.node.name} did not answer `{what}` in time",
                    hint=f"hvdcloud status --name {self._state.name} shows whether it is frozen",
                ) from None
            except ThreadException as error:
                raise error.exceptions[0].value from error
            _refuse_cut(result.exited)
            return result

    @contextlib.contextmanager
    def stream(self, command: str, *, quiet: float, within: float) -> Iterator[Stream]:
        """A command whose output has no limit, while it runs.

        Args:
            quiet: seconds without output after which the node is asked whether it still answers.
            within: seconds that it has for that.

        Raises NodeError: the connection is lost, also later, in the block.
        """
        connection = self.open()
        with (
            self.losses(),
            self.watched(quiet=quiet, within=within),
            contextlib.closing(connection.create_session()) as channel,
        ):
            channel.exec_command(command)
            channel.shutdown_write()
            yield Stream(self, channel)

    def hear(self) -> None:
        """Note that the node says something."""
        self._heard = time.monotonic()

    @contextlib.contextmanager
    def losses(self) -> Iterator[None]:
        """Raises NodeError where the connection is lost in the block."""
        try:
            yield
        except LOSSES as error:
            raise self._lost(words(error) or type(error).__name__) from error

    @contextlib.contextmanager
    def watched(self, *, quiet: float | None = None, within: float | None = None) -> Iterator[None]:
        """Close the connection during the block if the node does not answer any more, which ends what waits for it.

        Args:
            quiet: seconds without a word of it after which it is asked; None: CHECK_SECONDS.
            within: seconds that it has to answer; None: ANSWER_SECONDS.
        """
        quiet, within = quiet or CHECK_SECONDS, within or ANSWER_SECONDS
        over = threading.Event()
        self.hear()

        def watch() -> None:
            while not over.wait(max(0.01, self._heard + quiet - time.monotonic())):
                if time.monotonic() - self._heard >= quiet and self.answers(within=within):
                    self.hear()

        # It is not waited for: the answer may take a while, and is of no interest any more.
        threading.Thread(target=watch, name=f"watch {self.node.name}", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _lost(self, why: str) -> NodeError:
        hint = f"hvdcloud status --name {self._state.name} shows whether the node still runs"
        return NodeError(f"the connection to node {self.node.name} was lost: {why}", hint=hint)

    def call(self, verb: str, *, payload: Mapping[str, Any] | None = None, timeout: float = 60.0) -> dict[str, Any]:
        """One verb of the node program: JSON in, JSON out. Raises NodeError: it failed, or did not answer in time."""
        stdin = json.dumps(payload) + "\n" if payload is not None else ""
        result = self.run(f"{NODE_PROGRAM} {verb}", stdin=stdin, timeout=timeout, what=verb.split()[0])
        return self.parse(verb, result.stdout, exit_code=result.exited, errors=result.stderr)

    def parse(self, verb: str, answer: str, *, exit_code: int, errors: str) -> dict[str, Any]:
        """The JSON in the last line of an answer. Raises NodeError: it is an error or something else."""
        said = answer.strip().rpartition("\n")[2]
        found = parse_object(said)
        node = f"node {self.node.name}"
        if found is not None and "error" in found:
            # What to type next is never taken from a node.
            raise NodeRefusedError(
                says(node, found["error"]),
                hint=f"hvdcloud status --name {self._state.name} shows the nodes and their runs",
                details=says(node, found["hint"]) if found.get("hint") else "",
                answer=found,
            )
        if exit_code != 0 or found is None:
            raise NodeError(
                f"{node}: `{verb.split()[0]}` ended with exit code {exit_code}",
                hint=f"hvdcloud ssh {self.node.index} opens a shell there",
                details=log_of(node, errors.strip() or said),
            )
        return found


class Stream:
    """What a running command writes."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self._session, self._channel = session, channel

    def __iter__(self) -> Iterator[bytes]:
        """Pieces as they come, b"" after half a second without one, until the command ends."""
        self._channel.settimeout(_PAUSE_SECONDS)
        while True:
            try:
                data = self._channel.recv(CHUNK)
            except TimeoutError:
                yield b""
                continue
            if not data:
                return
            self._session.hear()
            yield data

    def end(self) -> tuple[int, str]:
        """Its exit code, and the end of what it wrote to its standard error; once all pieces were read."""
        self._channel.settimeout(ANSWER_SECONDS)
        errors = bytearray()
        while data := self._channel.recv_stderr(CHUNK):
            errors += data
            del errors[:-MOST_ERRORS]
        if not self._channel.status_event.wait(ANSWER_SECONDS):
            raise EOFError("it does not say how it ended")
        code = self._channel.recv_exit_status()
        _refuse_cut(code)
        return code, errors.decode(errors="replace")


class _Heard(io.TextIOBase):
    """Where Fabric writes what a command says: a sign of life, with a limit."""

    def __init__(self, session: Session, what: str) -> None:
        self._session, self._what = session, what
        self._left = MOST_ANSWER

    def write(self, text: str) -> int:
        self._session.hear()
        self._left -= len(text)
        if self._left < 0:
            node = self._session.node
            raise NodeError(
                f"node {node.name} answered `{self._what}` with more than {size(MOST_ANSWER)}",
                hint=f"hvdcloud ssh {node.index} opens a shell there",
            )
        return len(text)


def _refuse_cut(exit_code: int) -> None:
    """Raise EOFError where a command ended because the connection did."""
    if exit_code == -1:
        raise EOFError("it was cut off")


class NodeRefusedError(NodeError):
    """The node program answered with an error of its own; `answer` holds all it said."""

    def __init__(self, message: str, *, hint: str, details: str, answer: dict[str, Any]) -> None:
        super().__init__(message, hint=hint, details=details)
        self.answer = answer


class Fleet:
    """The sessions of one cluster, head first."""

    def __init__(self, nodes: Sequence[Node], state: ClusterState) -> None:
        self.sessions = tuple(Session(node, state) for node in sorted(nodes, key=lambda node: node.index))

    @property
    def head(self) -> Session:
        """Node 0's session."""
        return self.sessions[0]

    def each(self, call: Callable[[Session], R]) -> list[R]:
        """`call` for every node at once.

        Raises HvdcloudError: of the first node that failed; its details name every other one.
        """
        results = self.each_outcome(call)
        if failed := [result for result in results if isinstance(result, HvdcloudError)]:
            raise first_of(failed)
        return [result for result in results if not isinstance(result, HvdcloudError)]

    def each_outcome(self, call: Callable[[Session], R]) -> list[R | HvdcloudError]:
        """Call `call` for every node at once; an HvdcloudError takes its result's place."""

        def settled(session: Session) -> R | HvdcloudError:
            try:
                return call(session)
            except HvdcloudError as error:
                return error

        # Ctrl-C closes the connections, which ends the calls that still wait.
        return side_by_side(settled, self.sessions, on_abort=self.close)

    def close(self) -> None:
        """Close every connection."""
        for session in self.sessions:
            session.close()
