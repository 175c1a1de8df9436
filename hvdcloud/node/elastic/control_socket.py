"""The socket of an elastic run's supervisor, on which `admit` and `dismiss` add and remove nodes.

A Unix socket on the head, one JSON line each way; the answer to `dismiss` comes when the nodes have left.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable
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


def listen(run: str) -> socket.socket:
    """A listening socket, for the supervisor."""
    path = socket_file(run)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(old)
    listener.listen(16)
    return listener


class Caller:
    """One accepted connection, which waits for one answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = Channel(read_fd=connection.fileno(), write_fd=connection.fileno())

    def answer(self, message: dict[str, Any]) -> None:
        """Send the answer and close the connection; whether the caller still waits does not matter."""
        self.channel.send(message)
        self.connection.close()


def accept(
    listener: socket.socket,
    register: Callable[[int, Callable[[], None]], None],
    answer: Callable[[dict[str, Any], Caller], None],
) -> None:
    """Accept a connection. `register` has a function called whenever a descriptor can be read; `answer` takes the
    request, unregisters the caller's descriptor and answers."""
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return
    caller = Caller(connection)

    def hear() -> None:
        messages = caller.channel.receive()
        if messages or caller.channel.closed:
            answer(messages[0] if messages else {}, caller)

    register(connection.fileno(), hear)


def ask(run: str, request: dict[str, Any]) -> dict[str, Any]:
    """The supervisor's answer to a request. Raises UsageError: the run has ended, is not elastic, or refuses;
    NodeError: the supervisor does not answer."""
    if state.supervised(run) is None:
        raise UsageError(f"run {run} has ended", hint="hvdcloud status shows it")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        try:
            connection.connect(str(socket_file(run)))
        except (FileNotFoundError, ConnectionRefusedError):
            raise UsageError(
                f"run {run} is not elastic", hint="with run.elastic in hvdcloud.yaml, the next run is"
            ) from None
        channel = Channel(read_fd=connection.fileno(), write_fd=connection.fileno())
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
