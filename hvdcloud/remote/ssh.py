"""Commands and verbs of the node program, which run on the nodes over SSH; what they say, and how they end."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hvdcloud.errors import HvdcloudError, NodeError, first_of
from hvdcloud.json_values import parse_object
from hvdcloud.parallel import side_by_side
from hvdcloud.remote.connection import CONNECT_SECONDS, LOSSES, NodeConnection, hanging_up_after
from hvdcloud.units import size
from hvdcloud.visible import log_of, says, words

if TYPE_CHECKING:
    from paramiko import Channel

    from hvdcloud.cluster.model import Node
    from hvdcloud.cluster.state import ClusterState

R = TypeVar("R")

NODE_PROGRAM = "hvdcloud-node"
CHECK_SECONDS = 10.0
"""How long a node may say nothing, while something waits for it, until it is asked whether it is still there."""
ANSWER_SECONDS = 30.0
"""How long its sshd may take to say so, also behind a few MB that a slow line is still sending."""
SLOW_SECONDS = 120.0
"""The same where files come and go."""
SILENT_SECONDS = 600.0
"""How long a node that still answers may take for the next piece of a file, as from a slow disk."""
SLOWEST = 100_000
"""Bytes a second of a line on which files are sent."""
MOST_ANSWER = 64 << 20
"""Bytes that a command may answer; a node that sends more is not believed."""
MOST_ERRORS = 4 << 20
"""Bytes that are kept of the end of what a streamed command says beside its output."""
CHUNK = 1 << 16
_PAUSE_SECONDS = 0.5


class Output(NamedTuple):
    """What a command wrote, and its exit code."""

    stdout: str
    stderr: str
    exited: int


class Session(NodeConnection):
    """Runs commands on one node. Safe to use from several threads."""

    @contextlib.contextmanager
    def stream(self, command: str, *, quiet: float | None = None, within: float | None = None) -> Iterator[Stream]:
        """A command for the node's shell, while it runs.

        Args:
            quiet: seconds without a word of it after which the node is asked whether it is still there; None:
                CHECK_SECONDS.
            within: seconds that it has to answer; None: ANSWER_SECONDS.

        Raises NodeError: the connection is lost.
        """
        connection = self.open()
        with self.losses(), hanging_up_after(CONNECT_SECONDS, connection.transport):
            channel = connection.create_session()
            channel.exec_command(command)
        try:
            yield Stream(self, channel, quiet=quiet or CHECK_SECONDS, within=within or ANSWER_SECONDS)
        finally:
            with contextlib.suppress(*LOSSES):
                channel.close()

    def run(
        self, command: str, *, stdin: Iterable[bytes] = (), timeout: float = 60.0, within: float | None = None
    ) -> Output:
        """Run a command to its end.

        Args:
            stdin: pieces of what it reads.
            within: as for `stream`.

        Raises:
            NodeError: no answer in `timeout` seconds, one above MOST_ANSWER, or the connection broke.
        """
        what, deadline, answer = command.removeprefix(f"{NODE_PROGRAM} "), time.monotonic() + timeout, bytearray()
        self.open(within=timeout)
        with self.stream(command, within=within) as stream:
            for piece in stdin:
                stream.write(piece)
            stream.end_input()
            for piece in stream:
                answer += piece
                if len(answer) > MOST_ANSWER:
                    raise NodeError(
                        f"node {self.node.name} answered `{what}` with more than {size(MOST_ANSWER)}",
                        hint=f"hvdcloud ssh {self.node.index} opens a shell there",
                    )
                if time.monotonic() > deadline:
                    raise NodeError(
                        f"node {self.node.name} did not answer `{what}` in time",
                        hint=f"hvdcloud status --name {self._state.name} shows whether it is frozen",
                    )
            code, errors = stream.end()
        return Output(stdout=answer.decode(errors="replace"), stderr=errors, exited=code)

    def call(
        self,
        verb: str,
        *,
        payload: Mapping[str, Any] | None = None,
        content: Iterable[bytes] = (),
        content_size: int = 0,
        timeout: float = 60.0,
    ) -> dict[str, Any]:
        """One verb of the node program: JSON in, JSON out.

        Args:
            content: pieces of what it reads behind its JSON, about `content_size` bytes in all.
            timeout: seconds without those that sending the content takes.

        Raises NodeError: it failed, or did not answer in time.
        """
        said = self.run(
            f"{NODE_PROGRAM} {verb}",
            stdin=itertools.chain([request(payload)] if payload is not None else [], content),
            timeout=timeout + content_size / SLOWEST,
            within=SLOW_SECONDS if content_size else None,
        )
        return self.parse(verb, said.stdout, exit_code=said.exited, errors=said.stderr)

    @contextlib.contextmanager
    def losses(self) -> Iterator[None]:
        """Raises NodeError where the connection is lost in the block."""
        try:
            yield
        except LOSSES as error:
            raise NodeError(
                f"the connection to node {self.node.name} was lost: {words(error) or type(error).__name__}",
                hint=f"hvdcloud status --name {self._state.name} shows whether the node still runs",
            ) from error

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
    """A running command, its input and its output. Each call may raise NodeError: the connection is lost."""

    def __init__(self, session: Session, channel: Channel, *, quiet: float, within: float) -> None:
        self._session, self._channel = session, channel
        self._quiet, self._within = quiet, within
        self._heard = time.monotonic()
        self._rest = b""
        channel.settimeout(_PAUSE_SECONDS)

    def write(self, data: bytes) -> None:
        """Send what it reads; what it does not read because it has ended is dropped."""
        left, until = memoryview(data), time.monotonic() + SILENT_SECONDS
        while left and not self._channel.exit_status_ready():
            with self._session.losses():
                try:
                    left = left[self._channel.send(left[:CHUNK].tobytes()) :]
                    until = time.monotonic() + SILENT_SECONDS
                except TimeoutError:
                    self._check(until)
                except LOSSES:
                    # Its end says why.
                    return

    def end_input(self) -> None:
        """Have it read nothing more."""
        # It may have ended.
        with contextlib.suppress(*LOSSES):
            self._channel.shutdown_write()

    def __iter__(self) -> Iterator[bytes]:
        """Pieces as they come, b"" after half a second without one, until the command ends."""
        while True:
            with self._session.losses():
                try:
                    data: bytes | None = self._channel.recv(CHUNK)
                except TimeoutError:
                    self._check()
                    data = None
            if data == b"":
                return
            if data:
                self._heard = time.monotonic()
            yield data or b""

    def line(self) -> bytes | None:
        """The next line, or its beginning if it is long; None: the command has ended."""
        while b"\n" not in self._rest and len(self._rest) < CHUNK:
            if not (data := self._next()):
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def take(self, count: int) -> Iterator[bytes]:
        """The next bytes. Raises NodeError also where there are fewer."""
        while count:
            if not (data := self._rest or self._next()):
                with self._session.losses():
                    raise EOFError("it ended early")
            piece, self._rest = data[:count], data[count:]
            count -= len(piece)
            yield piece

    def _next(self) -> bytes:
        """The next piece; nothing at the end."""
        until = time.monotonic() + SILENT_SECONDS
        for data in self:
            if data:
                return data
            with self._session.losses():
                self._check(until)
        return b""

    def _check(self, until: float = math.inf) -> None:
        """Raise TimeoutError where nothing has come or gone until then; EOFError: the node does not answer."""
        now = time.monotonic()
        if now > until:
            raise TimeoutError(f"nothing came or went for {SILENT_SECONDS:.0f} s")
        if now - self._heard >= self._quiet:
            if not self._session.answers(within=self._within):
                raise EOFError("it does not answer")
            self._heard = time.monotonic()

    def end(self) -> tuple[int, str]:
        """Its exit code, and the end of what it wrote to its standard error; once all pieces were read."""
        errors = bytearray()
        self._channel.settimeout(ANSWER_SECONDS)
        with self._session.losses():
            while data := self._channel.recv_stderr(CHUNK):
                errors += data
                del errors[:-MOST_ERRORS]
            if not self._channel.status_event.wait(ANSWER_SECONDS):
                raise EOFError("it does not say how it ended")
            code = self._channel.recv_exit_status()
            if code == -1:
                raise EOFError("it was cut off")
        return code, errors.decode(errors="replace")


def request(payload: object) -> bytes:
    """The line that a verb of the node program reads."""
    return json.dumps(payload).encode() + b"\n"


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
