"""JSON lines over pipes and sockets, without ever blocking on the other side.

A frozen peer takes no bytes: what cannot be sent waits in memory, and heartbeats are dropped rather than queued.
"""

from __future__ import annotations

import json
import os
from typing import Any

BEAT_SECONDS = 1.0
"""How often each side of a lease says that it is alive."""
_READ_SIZE = 1 << 16


class Channel:
    """One conversation in JSON lines.

    Args:
        read_fd: what the peer says; made non-blocking.
        write_fd: where we answer; may be the same; made non-blocking.
    """

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
        """All complete messages that have arrived; sets `closed` at the end of the stream.

        A line that is not a JSON object (a shell's greeting, say) is passed over.
        """
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
