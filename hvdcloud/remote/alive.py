"""Whether the other end of an SSH connection is still there.

A VM that is deleted, a machine that freezes and a network that goes away end no connection: whoever waits for a word
from there waits until the deadline of the whole call, or for ever.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramiko import Transport


@contextlib.contextmanager
def hanging_up_after(seconds: float, transport: Transport) -> Iterator[None]:
    """A block that nobody's silence can hold for longer: paramiko itself would wait for an hour, or for ever."""
    overdue = threading.Timer(seconds, transport.close)
    overdue.daemon = True
    overdue.start()
    try:
        yield
    finally:
        overdue.cancel()


def answers(transport: Transport | None, *, within: float) -> bool:
    """Ask sshd for a sign of life, which costs its machine nothing; hang up where there is none.

    The same as OpenSSH's ServerAliveInterval does (ssh_config(5)).

    Args:
        within: seconds.
    """
    from paramiko import SSHException

    if transport is None:
        return False
    # What goes wrong in it ends the connection, and that is the answer.
    with hanging_up_after(within, transport), contextlib.suppress(SSHException, OSError, EOFError):
        # sshd knows no such request, and says so.
        transport.global_request("keepalive@openssh.com", wait=True)
    return bool(transport.is_active())
