"""What reaches a main loop that waits in a selector: JSON lines over pipes and sockets, and calls by other threads.

A channel never blocks on its peer. A frozen peer takes no bytes: what cannot be sent waits in memory, and heartbeats
are dropped rather than queued.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from hvdcloud.json_values import parse_object

BEAT_SECONDS = 1.0
"""How often each side of a lease says that it is alive."""
_READ_SIZE = 1 << 16
_LONGEST_MESSAGE = 1 << 24
"""Bytes; a peer that sends more without a line's end is given up."""


class Channel:
    """One conversation in JSON lines over one descriptor, or two; they are made non-blocking."""

    def __init__(self, read_fd: int, write_fd: int | None = None) -> None:
        self.read_fd = read_fd
        self.write_fd = read_fd if write_fd is None else write_fd
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False
        """The peer closed the connection, or is gone; what it had sent before was still delivered."""

    @property
    def blocked(self) -> bool:
        """Whether something waits for the peer to read."""
        return bool(self._outgoing)

    def receive(self) -> list[dict[str, Any]]:
        """All complete messages that have arrived; sets `closed` at the end of the stream. A line that is not a JSON
        object (a shell's greeting, say) is skipped."""
        while not self.closed:
            try:
                data = os.read(self.read_fd, _READ_SIZE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self._incoming += data
            if len(self._incoming) > _LONGEST_MESSAGE:
                break
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = bytearray(rest)
        self.closed = self.closed or len(rest) > _LONGEST_MESSAGE
        return [message for line in lines if line.startswith(b"{") and (message := parse_object(line)) is not None]

    def send(self, message: dict[str, Any]) -> None:
        """Say something; it is kept until the peer takes it, and dropped if the peer is gone."""
        self._outgoing += json.dumps(message).encode() + b"\n"
        self.flush()

    def beat(self) -> None:
        """Say that we are alive, unless the peer has not even taken what was said before."""
        self.flush()
        if not self._outgoing:
            self.send({"type": "beat"})

    def flush(self) -> None:
        """Send what the peer takes now."""
        while self._outgoing and not self.closed:
            try:
                sent = os.write(self.write_fd, self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                # The reading side decides when the peer is gone, after its last words were read.
                self._outgoing.clear()
                return
            del self._outgoing[:sent]


class Caller:
    """One connection to a socket of this process."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = Channel(connection.fileno())

    def answer(self, message: dict[str, Any]) -> None:
        """Send the one answer and close the connection; whether the caller still waits does not matter."""
        self.channel.send(message)
        self.connection.close()


AnyCaller = TypeVar("AnyCaller", bound=Caller)


class Listener(Generic[AnyCaller]):
    """A Unix socket that listens, for this user alone.

    Args:
        kind: what a connection becomes.
        hear: called whenever a caller has said something, or has hung up.
    """

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, *, kind: type[AnyCaller], hear: Callable[[AnyCaller], None]
    ) -> None:
        self.callers: set[AnyCaller] = set()
        self._path = path
        self._selector = selector
        self._kind = kind
        self._hear = hear
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        old = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(old)
        self._socket.listen(256)
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        # The caller may have hung up again.
        with contextlib.suppress(BlockingIOError):
            caller = self._kind(self._socket.accept()[0])
            self.callers.add(caller)
            self._selector.register(caller.connection, selectors.EVENT_READ, lambda: self._hear(caller))

    def forget(self, caller: AnyCaller) -> None:
        """Hear a caller no longer."""
        if caller in self.callers:
            self.callers.discard(caller)
            self._selector.unregister(caller.connection)

    def close(self) -> None:
        """Take no more callers."""
        self._selector.unregister(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)


def turn(selector: selectors.BaseSelector, seconds: float) -> None:
    """Wait for events, at most so long, and call what was registered as each one's data."""
    # A process that was stopped for longer than its timeout does not see what arrived meanwhile.
    for key, _ in selector.select(seconds) or selector.select(0):
        # An earlier event of this round may have closed this one's descriptor.
        if selector.get_map().get(key.fd) is key:
            key.data()


def ask(path: Path, message: dict[str, Any], *, deadline: float) -> dict[str, Any] | None:
    """What the process behind a socket answers; None: there is none, or it ends before it answers.

    Args:
        deadline: of time.monotonic().

    Raises:
        TimeoutError: it did not answer in time.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            connection.connect(str(path))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as answer:
                return parse_object(answer.readline())
    except (FileNotFoundError, ConnectionError):
        return None


class Mailbox:
    """Calls that wait for the main loop; register it for reading, with `deliver`."""

    def __init__(self) -> None:
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Can be read when something was posted."""
        return self._reader

    def post(self, call: Callable[[], None]) -> None:
        """Have something done by the main loop; from any thread or signal handler."""
        self._posted.append(call)
        # A full pipe wakes the loop just as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def deliver(self) -> None:
        """By the main loop: do all that was posted."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        while self._posted:
            self._posted.popleft()()
