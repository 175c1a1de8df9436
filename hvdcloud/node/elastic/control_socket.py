"""The socket of an elastic run's supervisor, on which `admit` and `dismiss` add and remove nodes.

A Unix socket on the head, one JSON line each way; the answer to `dismiss` comes when the nodes have left.
"""

from __future__ import annotations

import json
import select
import socket
import time
from pathlib import Path
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import paths
from hvdcloud.node.run import state
from hvdcloud.node.run.channel import Channel

SECONDS = 600.0
"""How long the checkpoints of nodes that leave may take."""


def socket_file(run: str) -> Path:
    """The socket of the supervisor of an elastic run."""
    return paths.secret_dir(run) / "supervisor.sock"


class Caller:
    """One accepted connection, which waits for one answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = Channel(connection.fileno())

    def answer(self, message: dict[str, Any]) -> None:
        """Send the answer and close the connection; whether the caller still waits does not matter."""
        self.channel.send(message)
        self.connection.close()


def ask(run: str, request: dict[str, Any]) -> dict[str, Any]:
    """The supervisor's answer to a request. Raises UsageError: the run has ended, is not elastic, or refuses;
    NodeError: the supervisor does not answer."""
    if state.supervised(run) is None:
        raise UsageError(f"run {run} has ended", hint="hvdcloud status shows it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(socket_file(run)))
        except (FileNotFoundError, ConnectionRefusedError):
            raise UsageError(
                f"run {run} is not elastic", hint="with run.elastic in hvdcloud.yaml, the next run is"
            ) from None
        channel = Channel(connection.fileno())
        channel.send(request)
        deadline = time.monotonic() + SECONDS
        while (left := deadline - time.monotonic()) > 0 and not channel.closed:
            select.select([connection], [], [], left)
            for message in channel.receive():
                if "error" in message:
                    raise UsageError(str(message["error"]), hint=str(message.get("hint", "hvdcloud status")))
                return {"ok": True, **message}
    raise NodeError(
        f"the supervisor of run {run} did not answer to {json.dumps(request.get('type'))}",
        hint="hvdcloud status shows whether the run is active",
    )
