"""Verbs of the node program, which run on the nodes over SSH; what they say, and how they end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hvdcloud.errors import HvdcloudError, NodeError, first_of
from hvdcloud.json_values import parse_object
from hvdcloud.node.mesh.ssh import NODE_PROGRAM
from hvdcloud.parallel import side_by_side
from hvdcloud.remote.connection import LOSSES, NodeConnection
from hvdcloud.units import size
from hvdcloud.visible import log_of, says, words

if TYPE_CHECKING:
    from paramiko import Channel

    from hvdcloud.cluster.model import Node
    from hvdcloud.cluster.state import ClusterState

R = TypeVar("R")

END_SECONDS = 30.0
"""How long a node may take to say how a verb has ended whose output has."""
SLOWEST = 100_000
"""Bytes a second of a line on which files are sent."""
MOST_ANSWER = 64 << 20
"""Bytes that a verb may answer; a node that sends more is not believed."""
MOST_LINE = 16 << 20
"""Bytes of a line of a streamed verb's output."""
MOST_ERRORS = 4 << 20
"""Bytes that are kept of the end of what a streamed verb says beside its output."""
CHUNK = 1 << 16


class Session(NodeConnection):
    """Runs verbs of the node program on one node. Safe to use from several threads."""

    @contextlib.contextmanager
    def stream(self, verb: str, *, silent: float | None) -> Iterator[Stream]:
        """A verb of the node program, while it runs.

        Args:
            silent: seconds that it may take for the next piece of its output, or to read one; None: any time.

        Raises NodeError: the connection is lost.
        """
        connection = self.open()
        with self.losses(verb):
            channel = connection.create_session()
            channel.exec_command(f"{NODE_PROGRAM} {verb}")
            channel.settimeout(silent)
        try:
            yield Stream(self, channel, verb)
        finally:
            with contextlib.suppress(*LOSSES):
                channel.close()

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

        Raises:
            NodeError: it failed, did not answer in time, answered more than MOST_ANSWER, or the connection broke.
        """
        timeout += content_size / SLOWEST
        deadline, answer = time.monotonic() + timeout, bytearray()
        self.open(within=timeout)
        with self.stream(verb, silent=timeout) as stream:
            if payload is not None:
                stream.write(request(payload))
            for piece in content:
                stream.write(piece)
            stream.end_input()
            for piece in stream:
                answer += piece
                if len(answer) > MOST_ANSWER:
                    raise NodeError(
                        f"node {self.node.name} answered `{verb}` with more than {size(MOST_ANSWER)}",
                        hint=f"hvdcloud ssh {self.node.index} opens a shell there",
                    )
                if time.monotonic() > deadline:
                    with self.losses(verb):
                        raise TimeoutError
            code, errors = stream.end()
        return self.parse(verb, answer.decode(errors="replace"), exit_code=code, errors=errors)

    @contextlib.contextmanager
    def losses(self, verb: str) -> Iterator[None]:
        """Raises NodeError where the connection is lost in the block, or nothing is heard of a verb for too long."""
        try:
            yield
        except LOSSES as error:
            why = f"the connection to node {self.node.name} was lost: {words(error) or type(error).__name__}"
            if isinstance(error, TimeoutError):
                why = f"node {self.node.name} did not answer `{verb}` in time"
            hint = f"hvdcloud status --name {self._state.name} shows whether the node still runs"
            raise NodeError(why, hint=hint) from error

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
    """A running verb, its input and its output. Each call may raise NodeError: the connection is lost, or nothing
    has come or gone for as long as the node may take."""

    def __init__(self, session: Session, channel: Channel, verb: str) -> None:
        self._session, self._channel, self._verb = session, channel, verb
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Send what it reads; what it does not read because it has ended is dropped."""
        with self._session.losses(self._verb):
            try:
                for start in range(0, len(data), CHUNK):
                    self._channel.sendall(data[start : start + CHUNK])
            except TimeoutError:
                raise
            except LOSSES:
                # Its end says why.
                return

    def end_input(self) -> None:
        """Have it read nothing more."""
        # It may have ended.
        with contextlib.suppress(*LOSSES):
            self._channel.shutdown_write()

    def __iter__(self) -> Iterator[bytes]:
        """Pieces as they come, until it ends."""
        while data := self._next():
            yield data

    def line(self) -> bytes | None:
        """The next line, or its beginning if it is long; None: it has ended."""
        while b"\n" not in self._rest and len(self._rest) < MOST_LINE:
            if not (data := self._next()):
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def take(self, count: int) -> Iterator[bytes]:
        """The next bytes. Raises NodeError also where there are fewer."""
        while count:
            if not (data := self._rest or self._next()):
                with self._session.losses(self._verb):
                    raise EOFError("it ended early")
            piece, self._rest = data[:count], data[count:]
            count -= len(piece)
            yield piece

    def _next(self) -> bytes:
        """The next piece; nothing at the end."""
        with self._session.losses(self._verb):
            return self._channel.recv(CHUNK)

    def end(self) -> tuple[int, str]:
        """Its exit code, and the end of what it wrote to its standard error; once all pieces were read."""
        errors = bytearray()
        self._channel.settimeout(END_SECONDS)
        with self._session.losses(self._verb):
            while data := self._channel.recv_stderr(CHUNK):
                errors += data
                del errors[:-MOST_ERRORS]
            if not self._channel.status_event.wait(END_SECONDS):
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
