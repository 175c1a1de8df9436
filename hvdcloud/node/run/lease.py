"""The supervisor's hold on one node: an agent there, and heartbeats both ways."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence

from hvdcloud.node.channel import Channel
from hvdcloud.node.mesh import ssh
from hvdcloud.runs.reports import UploadReport

_ERROR_TAIL = 2000


class Lease:
    """The hold on one agent, which it starts.

    Args:
        argv: the command that starts the agent.
        silence: seconds without a heartbeat after which either side gives the other up.
        beat: seconds between two heartbeats.
    """

    def __init__(self, *, node: str, argv: Sequence[str], silence: float, beat: float) -> None:
        self.node = node
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self.channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        self.error_fd = self._process.stderr.fileno()
        os.set_blocking(self.error_fd, False)
        self._error = b""
        self.heard = time.monotonic()
        """When the node last said something."""
        self.ready = False
        self.quiet = False
        """Whether the ranks of the node have ended that were told to."""
        self.checkpoints: UploadReport | None = None
        """The agent's last report; set once it has finished."""
        self.misunderstood = False
        """Whether it sent a message that could not be used."""
        self.refusal = ""
        """What the agent said instead of becoming ready."""
        self.channel.send({"type": "hello", "silence": silence, "beat": beat})

    @property
    def finished(self) -> bool:
        """Whether the agent has done all that was to do on its node."""
        return self.checkpoints is not None

    def finish(self) -> None:
        """Ask the agent to end the run on its node."""
        self.channel.send({"type": "finish"})

    def read_error(self) -> bool:
        """Keep the end of what ssh says; False at the end of the stream."""
        try:
            data = os.read(self.error_fd, 1 << 16)
        except BlockingIOError:
            return True
        self._error = (self._error + data)[-_ERROR_TAIL:]
        return bool(data)

    def last_words(self) -> str:
        """Why the agent ended, in its own words or in ssh's; empty if neither said."""
        self.read_error()
        if self.refusal:
            return self.refusal
        lines = [line.strip() for line in self._error.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Close the connection. The agent, if it is alive, notices that and ends the run on its node."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
        # Nothing to be gentle with: ssh has no state, and a local agent has said its last word or does not answer.
        self._process.kill()
        self._process.wait()


def remote_agent(run: str, node: str, *, again: bool = False, probe: bool = False) -> list[str]:
    """The command that starts another node's agent.

    Args:
        again: the first lease broke: give up soon.
        probe: the agent first tries what a worker needs.
    """
    command = f"agent {shlex.quote(run)}" + (" --probe" if probe else "")
    return ssh.node_command(node, command, connect_seconds=ssh.RECONNECT_SECONDS if again else None)
