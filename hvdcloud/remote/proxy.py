"""A program as the way to a node's sshd, as OpenSSH's ProxyCommand has it.

paramiko's own ProxyCommand neither notices that its program has ended nor collects it, and leaves unread what it says
about its failure (https://github.com/paramiko/paramiko/issues/1277, https://github.com/paramiko/paramiko/issues/1713).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading

END_SECONDS = 2.0
READ_BYTES = 1 << 16
KEPT_CHARACTERS = 2000


class Proxy:
    """A running proxy program, in the shape of the socket that paramiko's Transport wants.

    `command` is split as in a shell's command line and run without a shell. Raises OSError: it cannot be run.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self.said = ""  # The end of what the program wrote to its standard error, once closed.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        # One pair for each way: gcloud makes its standard input non-blocking, which would hold for its output too if
        # both were one socket.
        self._outgoing, its_input = socket.socketpair()
        self._incoming, its_output = socket.socketpair()
        self._closing = threading.Lock()
        self._closed = False
        try:
            # In a session of its own, so that Ctrl-C does not cut the line while we still tidy up over it.
            self._process = subprocess.Popen(
                shlex.split(command),
                cwd="/",
                stdin=its_input.fileno(),
                stdout=its_output.fileno(),
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError:
            for end in (self._outgoing, self._incoming, self._errors):
                end.close()
            raise
        finally:
            its_input.close()
            its_output.close()

    def send(self, data: bytes) -> int:
        """Send as a socket does."""
        return self._outgoing.send(data)

    def recv(self, size: int) -> bytes:
        """Receive as a socket does: nothing once the program has ended."""
        return self._incoming.recv(size)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout as a socket does."""
        self._outgoing.settimeout(seconds)
        self._incoming.settimeout(seconds)

    def close(self) -> None:
        """End the program and all that it started; harmless if that is done."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._outgoing.close()
            self._incoming.close()
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
                    break
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - READ_BYTES))
            said = self._errors.read().decode(errors="replace")
            self.said = said.strip()[-KEPT_CHARACTERS:]
            self._errors.close()
