"""What reaches a main loop that waits in a selector: JSON lines over pipes and sockets, and calls by other threads.

A channel never blocks on its peer. A frozen peer takes no bytes: what cannot be sent waits in memory, and heartbeats
are dropped rather than queued.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from hvdcloud.node import paths

BEAT_SECONDS = 1.0
"""How often each side of a lease says that it is alive."""
_READ_SIZE = 1 << 16


class Channel:
    """One conversation in JSON lines over one descriptor, or two; they are made non-blocking."""

    def __init__(self, *, read_fd: int, write_fd: int) -> None:
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False
        """The peer hung up, or is gone; what it had said before was still delivered."""

    @property
    def blocked(self) -> bool:
        """Whether something waits for the peer to read."""
        return bool(self._outgoing)

    def receive(self) -> list[dict[str, Any]]:
        """All complete messages that have arrived; sets `closed` at the end of the stream. A line that is not a JSON
        object (a shell's greeting, say) is passed over."""
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
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = bytearray(rest)
        return [message for line in lines if (message := _parse(line)) is not None]

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


def _parse(line: bytes | bytearray) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def ask_agent(run: str, message: dict[str, Any], *, answer: str, deadline: float) -> dict[str, Any] | None:
    """The answer, of this type, of a run's live agent over its socket; None if there is no agent, or if it ends first.
    `deadline`: of time.monotonic(). Raises TimeoutError: it did not answer in time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(str(paths.agent_socket(run)))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        channel = Channel(read_fd=connection.fileno(), write_fd=connection.fileno())
        channel.send(message)
        while not channel.closed and (left := deadline - time.monotonic()) > 0:
            select.select([connection], [], [], left)
            for said in channel.receive():
                if said.get("type") == answer:
                    return said
        if channel.closed:
            return None
    raise TimeoutError


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
