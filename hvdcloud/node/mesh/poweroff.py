"""How nodes end without the laptop: each ends its own container, and the head asks the others to.

A VM's startup script then deletes the VM where its account may, else switches it off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdcloud.node import paths
from hvdcloud.node.mesh import ssh
from hvdcloud.storage.threads import parallel

_POWEROFF_SECONDS = 10.0
_OUTPUT_OF_THE_CONTAINER = Path("/proc/1/fd/1")


def end_others(nodes: Sequence[str]) -> None:
    """Ask other nodes of this cluster to end; one that does not answer ends at a limit of its own."""

    def end(node: str) -> None:
        null, command = subprocess.DEVNULL, ssh.node_command(node, "poweroff")
        subprocess.run(command, stdin=null, stdout=null, timeout=_POWEROFF_SECONDS, start_new_session=True)

    for outcome in parallel(nodes, end, workers=len(nodes)):
        if outcome.error is not None:
            sys.stderr.write(f"hvdcloud: {outcome.item}: {outcome.error}\n")


def switch_off() -> dict[str, Any]:
    """`poweroff`: end the container; its entrypoint ends everything in it."""
    os.kill(1, signal.SIGTERM)
    return {"ok": True}


def write_line(text: str) -> None:
    """Write a line into the container's log, which a VM has on its serial port as well."""
    line = f"hvdcloud: {text}\n"
    # A test's folder is not the container.
    if paths.ROOT_VARIABLE not in os.environ:
        with contextlib.suppress(OSError), _OUTPUT_OF_THE_CONTAINER.open("a") as output:
            output.write(line)
            return
    sys.stderr.write(line)
