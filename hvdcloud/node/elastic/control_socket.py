"""The socket of an elastic run's supervisor, on which `admit` and `dismiss` add and remove nodes.

A Unix socket on the head, one JSON line each way; the answer to `dismiss` comes when the nodes have left.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import channel, paths
from hvdcloud.node.records import active

SECONDS = 600.0
"""How long the checkpoints of nodes that leave may take."""


def socket_file(run: str) -> Path:
    """The socket of the supervisor of an elastic run."""
    return paths.secret_dir(run) / "supervisor.sock"


class Caller:
    """One accepted connection, which waits for one answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = channel.Channel(connection.fileno())

    def answer(self, message: dict[str, Any]) -> None:
        """Send the answer and close the connection; whether the caller still waits does not matter."""
        self.channel.send(message)
        self.connection.close()


class ControlSocket:
    """Listens until it is closed. `answer`: called with a request, empty where the caller has none, and the caller."""

    def __init__(
        self, run: str, selector: selectors.BaseSelector, answer: Callable[[Mapping[str, Any], Caller], None]
    ) -> None:
        self._file = socket_file(run)
        self._selector = selector
        self._answer = answer
        self._listener = channel.listen(self._file)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Take no more callers."""
        self._selector.unregister(self._listener)
        self._listener.close()
        self._file.unlink(missing_ok=True)

    def _accept(self) -> None:
        if (connection := channel.accept(self._listener)) is not None:
            caller = Caller(connection)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(caller))

    def _hear(self, caller: Caller) -> None:
        messages = caller.channel.receive()
        if messages or caller.channel.closed:
            self._selector.unregister(caller.connection)
            self._answer(messages[0] if messages else {}, caller)


def ask(run: str, request: dict[str, Any]) -> dict[str, Any]:
    """The supervisor's answer to a request.

    Raises:
        UsageError: the run has ended, is not elastic, or refuses.
        NodeError: the supervisor does not answer.
    """
    if active.supervised(run) is None:
        raise UsageError(f"run {run} has ended", hint="hvdcloud status shows it")
    try:
        message = next(channel.ask(socket_file(run), request, deadline=time.monotonic() + SECONDS), None)
    except (FileNotFoundError, ConnectionRefusedError):
        hint = "with run.elastic in hvdcloud.yaml, the next run is"
        raise UsageError(f"run {run} is not elastic", hint=hint) from None
    except TimeoutError:
        message = None
    if message is None:
        hint = "hvdcloud status shows whether the run is active"
        raise NodeError(f"the supervisor of run {run} did not answer to {json.dumps(request.get('type'))}", hint=hint)
    if "error" in message:
        raise UsageError(str(message["error"]), hint=str(message.get("hint", "hvdcloud status")))
    return {"ok": True, **message}
