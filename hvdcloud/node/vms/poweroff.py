"""How nodes end without the laptop: deleted where they are VMs that may do that, else switched off.

A VM that is switched off costs its disk until it is deleted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdcloud.node import machine, paths
from hvdcloud.node.mesh import ssh

GONE_SECONDS = 300.0
"""A VM whose deletion was granted and that still runs after so long switches itself off."""
_POWEROFF_SECONDS = 10.0
_OUTPUT_OF_THE_CONTAINER = Path("/proc/1/fd/1")


class Refusal(NamedTuple):
    """Nodes that could not be deleted, and will be switched off."""

    nodes: tuple[str, ...]
    reason: str

    @property
    def consequence(self) -> str:
        """What the user has to know about it."""
        return (
            f"{', '.join(self.nodes)} could not be deleted from within ({self.reason}): switched off instead; "
            "the disk of each costs money until hvdcloud down; hvdcloud setup allows nodes to delete themselves"
        )


def way() -> str:
    """What happens to nodes that end, in words."""
    return "deleting" if machine.on_vm() else "switching off"


def end_others(nodes: Sequence[str]) -> Refusal | None:
    """End other nodes of this cluster. Returns those that were switched off where they should have been deleted."""
    refused = _delete(nodes) if machine.on_vm() else dict.fromkeys(nodes, "")
    _power_off(list(refused))
    reasons = [reason for reason in refused.values() if reason]
    return Refusal(tuple(refused), reasons[0]) if reasons else None


def delete_this_one() -> Refusal | None:
    """Request this node's own deletion; None if it was granted, or if this node is not a VM."""
    if not machine.on_vm():
        return None
    refused = _delete([machine.name()])
    return Refusal(tuple(refused), *refused.values()) if refused else None


def wait_for_the_end(refusal: Refusal | None, *, seconds: float = GONE_SECONDS) -> None:
    """Be ended by the deletion that was granted; without one, or where it does not happen, switch off."""
    if machine.on_vm() and refusal is None:
        time.sleep(seconds)
        write_line(f"still here {seconds:.0f} s after the deletion was granted; switching off")
    switch_off()


def switch_off() -> dict[str, Any]:
    """`poweroff`: end the container; its entrypoint ends everything in it."""
    os.kill(1, signal.SIGTERM)
    return {"ok": True}


def write_line(text: str) -> None:
    """Write a line into the container's log, which a VM has on its serial port as well."""
    line = f"hvdcloud: {text}\n"
    if paths.is_container():
        with contextlib.suppress(OSError), _OUTPUT_OF_THE_CONTAINER.open("a") as output:
            output.write(line)
            return
    sys.stderr.write(line)


def _delete(nodes: Sequence[str]) -> dict[str, str]:
    try:
        # It imports HTTP and TLS, and most processes that import this module delete nothing.
        from hvdcloud.node.vms.compute import Compute

        return Compute().delete_vms(nodes)
    except Exception as error:  # noqa: BLE001 - whatever it is, nodes that cost money are then switched off
        return dict.fromkeys(nodes, f"{type(error).__name__}: {error}")


def _power_off(nodes: Sequence[str]) -> None:
    # Connections of their own: the run's shared ones have just been closed.
    commands = [ssh.node_command(node, "poweroff") for node in nodes]
    null = subprocess.DEVNULL
    calls = [subprocess.Popen(each, stdin=null, stdout=null, start_new_session=True) for each in commands]
    deadline = time.monotonic() + _POWEROFF_SECONDS
    for call in calls:
        try:
            call.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"hvdcloud: {call.args!r} did not end in time\n")
            call.kill()
