"""A node's SSH connection through Fabric, with pinned host keys only.

Fabric's own defaults accept any host key and read the user's ssh configuration; both are switched off here: a key that
is not the pinned one ends the connection before anything is sent.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import paramiko
from fabric import Config, Connection

from hvdcloud.attempts import login_attempts
from hvdcloud.cluster.model import NodeState
from hvdcloud.errors import NodeError
from hvdcloud.remote.keys import no_key, where
from hvdcloud.visible import words

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Node
    from hvdcloud.cluster.state import ClusterState
    from hvdcloud.remote.proxy import Proxy

CONNECT_SECONDS = 15.0
MOST_SECONDS = 60.0
"""For how long a node is tried at most, whatever its caller has: a slow or full sshd needs no longer."""
PROXY_SECONDS = 45.0
"""How long a proxy program may take to start and to get through."""
ALIVE_SECONDS = 10.0
"""How often the node's sshd is asked whether it is still there."""
ANSWER_SECONDS = 60.0
"""How long it may take to say so, also behind a few MB that a slow line is still sending."""
LOSSES = (paramiko.SSHException, OSError, EOFError)
"""What paramiko raises where a connection cannot be made, or is lost."""

# Without a handler, Python shows the tracebacks that paramiko logs for errors which are raised here as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class NodeConnection:
    """The connection to one node, with the cluster's key; opened on first use. Safe to use from several threads."""

    def __init__(self, node: Node, state: ClusterState) -> None:
        self.node = node
        self._state = state
        self._connection: Connection | None = None
        self._proxy: Proxy | None = None
        self._opening = threading.Lock()
        self._closing = threading.Event()

    def open(self, *, within: float = CONNECT_SECONDS) -> Connection:
        """Connect now, unless that is done; returns Fabric's connection.

        Args:
            within: seconds, at most MOST_SECONDS, in which a node that does not answer is tried again. One that has not
                answered this command by the end of such a time before is tried once.

        Raises NodeError: it has not answered by then, or it is not the one whose host key was pinned.
        """
        from tenacity import retry_if_exception

        with self._opening:
            if self._connection is None or not self._connection.is_connected:
                self._closing.clear()
                once = self.node.id in self._state.silent
                seconds = min(within, CONNECT_SECONDS if once else MOST_SECONDS)
                may_pass = retry_if_exception(self._may_pass)
                attempts = login_attempts(may_pass, seconds=0.0 if once else seconds, closing=self._closing)
                try:
                    self._connection = attempts(self._connect, time.monotonic() + seconds)
                except LOSSES as error:
                    if not self._closing.is_set():
                        self._state.silent.add(self.node.id)
                    raise self._explain(error) from error
                self._state.silent.discard(self.node.id)
            return self._connection

    def _may_pass(self, error: BaseException) -> bool:
        """Whether another try may succeed after this error."""
        if self._proxy is not None:
            self._proxy.close()
        refused = (paramiko.BadHostKeyException, paramiko.AuthenticationException)
        return isinstance(error, LOSSES) and not isinstance(error, refused)

    def _connect(self, deadline: float) -> Connection:
        """A connection, in one try that ends soon after the deadline of time.monotonic(). Raises what paramiko does."""
        name, host = self.node.name, where(self.node)
        if host is None or self.node.state is not NodeState.RUNNING:
            hint = f"hvdcloud status --name {self._state.name}"
            raise NodeError(f"node {name} is {self.node.state.value}", hint=hint)
        self._state.check()
        if not self._state.key_file.exists():
            raise no_key(self._state.name)
        seconds = max(PROXY_SECONDS if self.node.proxy_command else 1.0, deadline - time.monotonic())
        connection = Connection(
            host,
            user="root",
            port=self.node.port,
            config=Config(lazy=True, overrides={"load_ssh_configs": False}),
            connect_timeout=seconds,
            connect_kwargs={
                "pkey": paramiko.Ed25519Key.from_private_key_file(str(self._state.key_file)),
                "sock": self._socket(),
                "look_for_keys": False,
                "allow_agent": False,
                "banner_timeout": seconds,
                "auth_timeout": seconds,
                "channel_timeout": CONNECT_SECONDS,
            },
        )
        # Fabric has set a policy that trusts any host key; only the pinned keys count here.
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        connection.client.load_host_keys(str(self._state.known_hosts))
        connection.open()
        threading.Thread(target=_watch, args=(connection.transport,), name="node is alive", daemon=True).start()
        return connection

    def _socket(self) -> Any:
        """The proxy program's streams, which paramiko takes for a socket; None: there is no such program."""
        from hvdcloud.remote.proxy import Proxy

        self._close_proxy()
        if self.node.proxy_command is None:
            return None
        try:
            self._proxy = Proxy(self.node.proxy_command)
        except OSError as error:
            program = self.node.proxy_command.split()[0]
            raise NodeError(
                f"node {self.node.name} is only reached through {program}, which cannot be run: {error.strerror}",
                hint=f"install {program} and put it on the PATH",
            ) from error
        return self._proxy

    def _explain(self, error: Exception) -> NodeError:
        name = self.node.name
        place = f"at {where(self.node)}:{self.node.port}"
        hint = f"hvdcloud status --name {self._state.name} shows the nodes"
        if self._state.load() is None:  # `up` is not over, and deletes nodes that it cannot reach.
            hint = "let this machine reach that port (on gce, gce.ssh.source says who may), then hvdcloud up again"
        details = ""
        if self._proxy is not None:
            self._proxy.close()
            if self.node.host:
                place, hint = f"on {self.node.host}", "hvdcloud doctor looks at each host"
            else:
                place = f"through `{self._proxy.command}`"
                hint = "gcloud auth login, with an account that has roles/iap.tunnelResourceAccessor; then try again"
            details = self._proxy.said
        if isinstance(error, paramiko.BadHostKeyException):
            return NodeError(
                f"node {name}: the host key {place} is not the pinned one; nothing was sent",
                hint=f"if the node was replaced, hvdcloud down --name {self._state.name} and up again",
            )
        why = words(error) or type(error).__name__
        return NodeError(f"node {name} does not answer {place}: {why}", hint=hint, details=details)

    def close(self) -> None:
        """Close it, and the proxy program that it goes through; an attempt to connect is the last."""
        self._closing.set()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._close_proxy()

    def _close_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None


def _watch(transport: paramiko.Transport) -> None:
    """Close the connection once sshd does not answer a keepalive request, as with OpenSSH's ServerAliveInterval
    (ssh_config(5)), which ends every call that waits on it.

    A VM that is deleted, a machine that freezes and a network that fails end no connection, so that a command on it
    would wait until its deadline.
    """
    while transport.is_active():
        overdue = threading.Timer(ANSWER_SECONDS, transport.close)
        overdue.daemon = True
        overdue.start()
        # What goes wrong in it ends the connection. sshd knows no such request, and says so.
        with contextlib.suppress(*LOSSES):
            transport.global_request("keepalive@openssh.com", wait=True)
        overdue.cancel()
        transport.join(ALIVE_SECONDS)
