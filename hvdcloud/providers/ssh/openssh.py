"""OpenSSH's command lines for a host, and what its errors mean. Pure.

It is the system's own program, so that ~/.ssh/config, agents, jump hosts and known_hosts count as the user has them.
What follows is stricter than any configuration: a host key that is not known is an error, nothing is asked, and
neither the agent nor a display is forwarded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import CredentialsError, HvdcloudError, NodeError
from hvdcloud.visible import log_of, words

if TYPE_CHECKING:
    from hvdcloud.config.ssh_hosts import SshHostConfig

PROGRAM = "ssh"
CONNECT_SECONDS = 10
"""For the TCP connection to a host, and once more for each host that it is reached through."""
_STRICT = (
    # Before OpenSSH 8.7 there are no StdinNull, ForkAfterAuthentication and SessionType.
    "IgnoreUnknown=*",
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "StdinNull=no",
    "ForkAfterAuthentication=no",
)
_OPTIONS = (
    *_STRICT,
    f"ConnectTimeout={CONNECT_SECONDS}",
    # A host that freezes or loses its network closes no connection.
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "SessionType=default",
    # The user's own forwardings to this host would meet those of another session of theirs.
    "ClearAllForwardings=yes",
    "ControlPersist=no",
    # Without the banner; errors are said.
    "LogLevel=ERROR",
)
_BUSY = re.compile(r"kex_exchange_identification|banner exchange|Connection (reset|closed) by")
"""What ssh says where sshd has too many connections at once, or is slow."""


class BusyError(NodeError):
    """The host's sshd took the connection and ended it; it may take the next one."""


def options(host: SshHostConfig, *, control: Path | None = None) -> list[str]:
    """The words between `ssh` and the host.

    Args:
        control: the socket of a connection to it that others use; None: this one is its own.
    """
    found = [f"-o{option}" for option in _OPTIONS]
    found += [f"-oControlPath={control or 'none'}"]
    if host.user:
        found += ["-l", host.user]
    if host.port:
        found += ["-p", str(host.port)]
    if host.jump:
        # Not -J: ssh would give these options to the last host alone.
        strict = " ".join(shlex.quote(f"-o{option}") for option in (*_STRICT, f"ConnectTimeout={CONNECT_SECONDS}"))
        found += [f"-oProxyCommand={PROGRAM} {strict} -W [%h]:%p ssh://{host.jump}"]
    return found


def shared_connection(host: SshHostConfig, control: Path) -> list[str]:
    """What connects to the host, and stays until its standard input ends: whatever kills this process ends it too."""
    return [PROGRAM, "-T", "-oControlMaster=yes", *options(host, control=control), "--", host.host, "exec cat"]


def command(host: SshHostConfig, control: Path, remote: Sequence[str]) -> list[str]:
    """What runs a program on the host, over the shared connection."""
    return [PROGRAM, "-T", *options(host, control=control), "--", host.host, shlex.join(remote)]


def forwarding(control: Path, action: str, *what: str) -> list[str]:
    """What has a shared connection begin (`forward`) or end (`cancel`) a forwarding, which is named as for `ssh`."""
    # Without the user's configuration, whose own forwardings would be asked for as well.
    return [PROGRAM, "-F", "none", "-S", str(control), "-O", action, *what, "host"]


def proxy_command(host: SshHostConfig, port: int, *, control: Path | None = None) -> str:
    """The line whose standard input and output are a connection to a port of the host's loopback interface.

    Args:
        control: the socket of a shared connection, which saves a login. Where it does not answer any more, ssh connects
            as without it.
    """
    return shlex.join([PROGRAM, *options(host, control=control), "-W", f"127.0.0.1:{port}", "--", host.host])


def by_hand(host: SshHostConfig, remote: str = "") -> str:
    """What a user types for the same."""
    words = [PROGRAM]
    words += ["-J", host.jump] if host.jump else []
    words += ["-p", str(host.port)] if host.port else []
    words.append(f"{host.user}@{host.host}" if host.user else host.host)
    return f"{shlex.join(words)}{f' {remote}' if remote else ''}"


def explain(host: SshHostConfig, said: str) -> HvdcloudError:
    """Why a connection failed, by what ssh wrote; it has one exit code for all of its own errors."""
    name, typed = host.host, by_hand(host)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = words(lines[-1]) if lines else "ssh says nothing"
    details = log_of("ssh", "\n".join(lines)) if len(lines) > 1 else ""
    if "Host key verification failed" in said:
        return CredentialsError(
            f"the host key of {name} is not known on this machine, or that of a host on the way; nothing was sent",
            hint=f"{typed} shows it and asks, or says which line of known_hosts is old; then try again",
            details=details,
        )
    if "Permission denied" in said or "Too many authentication failures" in said:
        return CredentialsError(
            f"{name} refuses this user's keys: {last}",
            hint=f"{typed} has to work without a question: ssh-add loads a key, ssh-copy-id installs it there",
            details=details,
        )
    kind = BusyError if _BUSY.search(said) else NodeError
    return kind(f"{name} cannot be reached by SSH: {last}", hint=f"{typed} shows whether it is up", details=details)
