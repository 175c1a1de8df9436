"""The checkpoints of a run on this node, into the bucket at once: by its agent, or without one."""

from __future__ import annotations

import select
import socket
import time

from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.node import paths
from hvdcloud.node.run.channel import Channel
from hvdcloud.node.run.secrets_file import forget
from hvdcloud.node.run.spec import Spec
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.runs.state import UploadReport


def ask_to_flush(run: str, *, seconds: float) -> UploadReport | None:
    """Have a live agent upload what it can now; None if there is none.

    Raises:
        NodeError: it did not answer in time.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        try:
            connection.connect(str(paths.agent_socket(run)))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        channel = Channel(read_fd=connection.fileno(), write_fd=connection.fileno())
        channel.send({"type": "flush"})
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([connection], [], [], left)
            for message in channel.receive():
                if message.get("type") == "flushed":
                    return UploadReport.from_json(message["checkpoints"])
            if channel.closed:
                return None
    raise NodeError(f"the agent of run {run} did not upload its checkpoints in time", hint="hvdcloud pull tries again")


def finish_run(run: str) -> UploadReport:
    """Upload what is left of a run that has no agent on this node.

    Raises:
        HvdcloudError: the run was not prepared here.
    """
    spec = Spec.load(run)
    try:
        report = UploadLoop(spec).finish()
    except OSError as error:
        raise HvdcloudError(f"run {run}: {error}", hint="hvdcloud pull tries again") from error
    forget(run, keep_credentials=not report.complete)
    return report
