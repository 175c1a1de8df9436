"""Commands and verbs of the node program, which run on the nodes over SSH; what they say, and how they end."""

from __future__ import annotations

import contextlib
import json
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import paramiko

from hvdcloud.errors import HvdcloudError, NodeError, first_of
from hvdcloud.json_values import parse_object
from hvdcloud.parallel import side_by_side
from hvdcloud.remote.connection import CONNECT_SECONDS, NodeConnection, hanging_up_after
from hvdcloud.units import size
from hvdcloud.visible import log_of, says, words

if TYPE_CHECKING:
    from paramiko import Channel, Transport

    from hvdcloud.cluster.model import Node
    from hvdcloud.cluster.state import ClusterState

R = TypeVar("R")

NODE_PROGRAM = "hvdcloud-node"
START_SECONDS = 60.0  # How long the node program may take to start, beside whatever else starts then.
CHECK_SECONDS = 10.0  # How often a node that is waited for is asked whether it is still there.
ANSWER_SECONDS = 30.0  # How long its sshd may take to say so, also behind a few MB that a slow line is still sending.
SEND_SECONDS = 60.0  # After which a node that takes nothing of what is sent to it counts as lost.
CHUNK = 1 << 16
MOST_ANSWER = 64 << 20  # Bytes that a command may answer; a node that sends more is not believed.
MOST_ERRORS = 4 << 20  # Bytes that are kept of the end of what a command says beside its answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a command on a node ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes


def exit_code(channel: Channel) -> int:
    """The exit code of a command that has ended. Raises EOFError: it ended because the connection did."""
    code = channel.recv_exit_status()
    if code == -1:
        raise EOFError("it was cut off")
    return code


def has_ended(channel: Channel) -> bool:
    """Whether a command has ended and everything that it said was read.

    The exit code alone does not tell: sshd reports it as soon as the process is gone, and sends on what it said last.
    """
    over = channel.closed or (channel.exit_status_ready() and channel.eof_received)
    return bool(over) and not channel.recv_ready() and not channel.recv_stderr_ready()


class Session:
    """Runs commands on one node, over a connection that is opened on first use. Safe to use from several threads."""

    def __init__(self, node: Node, state: ClusterState) -> None:
        self.node = node
        self._state = state
        self._connection = NodeConnection(node, state)
        self._heard = 0.0  # When sshd last answered, by `time.monotonic()`.

    def open(self, *, within: float = CONNECT_SECONDS) -> Transport:
        """Connect now, unless that is done; `within`: seconds that a slow sshd has for it.

        Raises NodeError: the node does not answer, or it is not the one whose host key was pinned.
        """
        return self._connection.open(within=within)

    def close(self) -> None:
        """Close the connection; a program started on the node continues only if it has detached itself."""
        self._connection.close()

    @contextlib.contextmanager
    def channel(self, command: str, *, within: float = CONNECT_SECONDS) -> Iterator[Channel]:
        """A running command of the node's shell, with its streams.

        Args:
            within: seconds after which a node that does not start it counts as lost.

        Raises:
            NodeError: the connection is lost, also later, in the block.
        """
        with self._losses(), contextlib.closing(self._start(command, within=within)) as channel:
            yield channel

    def _start(self, command: str, *, within: float) -> Channel:
        transport = self.open()
        with hanging_up_after(within, transport):
            channel = transport.open_session()
            channel.exec_command(command)
        self._heard = time.monotonic()
        return channel

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        """Raises NodeError where the connection is lost in the block."""
        try:
            yield
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(words(error) or type(error).__name__) from error

    def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,
        what: str = "",
        take: Callable[[bytes], object] | None = None,
    ) -> Answer:
        """Run a command for the node's shell to its end.

        Args:
            what: names it in errors; default: its first word.
            take: is given what the command writes as it comes, of any length; the answer is then without it.

        Raises:
            NodeError: no answer in `timeout` seconds, one above MOST_ANSWER, or the connection broke.
        """
        deadline = time.monotonic() + timeout
        self.open(within=timeout)
        with self.channel(command, within=min(timeout, CONNECT_SECONDS)) as channel:
            channel.settimeout(min(timeout, SEND_SECONDS))
            if stdin:
                channel.sendall(stdin)
            channel.shutdown_write()
            return self.read_to_end(channel, deadline=deadline, what=what or command.split()[0], take=take)

    def read_to_end(
        self,
        channel: Channel,
        *,
        deadline: float,
        what: str,
        stdout: bytes = b"",
        take: Callable[[bytes], object] | None = None,
    ) -> Answer:
        """What the command says until it ends, after `stdout`, which was read already; raises as `run`."""
        output, errors = bytearray(stdout), bytearray()
        while not has_ended(channel):
            self.wait_readable(channel, deadline=deadline, what=what)
            while channel.recv_ready():
                data = channel.recv(CHUNK)
                if take is not None:
                    take(data)
                    continue
                output += data
                if len(output) > MOST_ANSWER:
                    raise NodeError(
                        f"node {self.node.name} answered `{what}` with more than {size(MOST_ANSWER)}",
                        hint=f"hvdcloud ssh {self.node.index} opens a shell there",
                    )
            while channel.recv_stderr_ready():
                errors += channel.recv_stderr(CHUNK)
                del errors[:-MOST_ERRORS]
        return Answer(exit_code=exit_code(channel), stdout=bytes(output), stderr=bytes(errors))

    def wait_readable(self, channel: Channel, *, deadline: float, what: str) -> None:
        """Block until the channel has output or reports its end.

        Raises NodeError: it had none until `deadline` (`time.monotonic()`), or the node does not answer any more.
        """
        left = deadline - time.monotonic()
        if left > ANSWER_SECONDS and time.monotonic() - self._heard > CHECK_SECONDS:
            self.check(within=ANSWER_SECONDS)
        if left <= 0:
            raise NodeError(
                f"node {self.node.name} did not answer `{what}` in time",
                hint=f"hvdcloud status --name {self._state.name} shows whether it is frozen",
            )
        # The exit status alone does not make paramiko's pipe readable, so the wait is cut into short pieces.
        select.select([channel], [], [], min(left, 0.02))

    def check(self, *, within: float) -> None:
        """See whether the node still answers. Raises NodeError: it does not, for `within` seconds."""
        if self._connection.answers(within=within):
            self._heard = time.monotonic()
            return
        raise self._lost("it does not answer any more")

    def _lost(self, why: str) -> NodeError:
        hint = f"hvdcloud status --name {self._state.name} shows whether the node still runs"
        return NodeError(f"the connection to node {self.node.name} was lost: {why}", hint=hint)

    def call(self, verb: str, *, payload: Mapping[str, Any] | None = None, timeout: float = 60.0) -> dict[str, Any]:
        """One verb of the node program: JSON in, JSON out. Raises NodeError: it failed, or did not answer in time."""
        stdin = json.dumps(payload).encode() + b"\n" if payload is not None else b""
        return self.parse(verb, self.run(f"{NODE_PROGRAM} {verb}", stdin=stdin, timeout=timeout, what=verb.split()[0]))

    def parse(self, verb: str, answer: Answer) -> dict[str, Any]:
        """The JSON that a verb answered. Raises NodeError: it reported an error or answered something else."""
        said = answer.stdout.decode(errors="replace").strip().rpartition("\n")[2]
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
        if answer.exit_code != 0 or found is None:
            raise NodeError(
                f"{node}: `{verb.split()[0]}` ended with exit code {answer.exit_code}",
                hint=f"hvdcloud ssh {self.node.index} opens a shell there",
                details=log_of(node, answer.stderr.decode(errors="replace").strip() or said),
            )
        return found


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
