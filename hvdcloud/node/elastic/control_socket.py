"""The socket of an elastic run's supervisor, on which `admit` and `dismiss` add and remove nodes.

A Unix socket on the head, one JSON line each way; the answer to `dismiss` comes when the nodes have left.
"""

from __future__ import annotations

import json
import time
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
