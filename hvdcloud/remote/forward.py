"""Ports of this machine that lead to ports of a node, over its pinned SSH connection.

The connection exists while a program uses a port, and is made again when it was lost. One that nobody uses is closed:
an SSH connection counts as activity of the node, and a forgotten one would keep idle machines from ending.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError, NodeError, UsageError
from hvdcloud.remote.ssh import ANSWER_SECONDS, CHECK_SECONDS, CHUNK, NothingListensError, Session

if TYPE_CHECKING:
    from paramiko import Channel

ADDRESS = "127.0.0.1"
UNUSED_SECONDS = 60.0
"""After which a connection that no program uses is closed."""
RECONNECT_SECONDS = 60.0
"""How long a program waits for a connection that was lost."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_FULL_SECONDS = 1.0
"""Pause while this process may open no more files."""
_MOST_PORT = 65535
_PRIVILEGED = 1024
"""Ports below it are root's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """A port of this machine and the node's port that it leads to."""

    local: int
    remote: int

    @classmethod
    def parse(cls, text: str) -> Ports:
        """From `6006` or `LOCAL:REMOTE`. Raises UsageError: it is neither."""
        local, _, remote = text.partition(":") if ":" in text else (text, "", text)
        if not all(part.isascii() and part.isdigit() and len(part) <= 5 for part in (local, remote)):
            raise UsageError(f"{text!r} is not a port", hint="hvdcloud forward 6006, or LOCAL:REMOTE: 16006:6006")
        if not all(1 <= int(part) <= _MOST_PORT for part in (local, remote)):
            raise UsageError(f"{text!r} is not a port: ports are 1 to {_MOST_PORT}", hint="hvdcloud forward 6006")
        return cls(local=int(local), remote=int(remote))


def listen(ports: Sequence[Ports]) -> list[socket.socket]:
    """Take these ports of this machine, for programs of this machine only; all or none.

    Raises UsageError: one of them is taken, named twice, or root's.
    """
    with contextlib.ExitStack() as opened:
        listeners = []
        for each in ports:
            other = f"{each.local + 1 if _PRIVILEGED <= each.local < _MOST_PORT else 8000 + each.local % 1000}"
            hint = f"take another port of this machine: hvdcloud forward {other}:{each.remote}"
            try:
                listeners.append(opened.enter_context(socket.create_server((ADDRESS, each.local))))
            except PermissionError as error:
                raise UsageError(f"port {each.local} of this machine may only be opened by root", hint=hint) from error
            except OSError as error:
                what = f"port {each.local} of this machine cannot be opened: {error.strerror or error}"
                raise UsageError(what, hint=hint) from error
        opened.pop_all()
    return listeners


class Forwarder:
    """Takes the connections of programs to `ports` and leads each to the node, until `close`.

    Args:
        find: a session to the node as it is now, not yet open. Raises UsageError: there is no such node any more.
        say: is told of what changes.
    """

    def __init__(self, ports: Sequence[Ports], *, find: Callable[[], Session], say: Callable[[str], object]) -> None:
        self._find, self._say = find, say
        self._listeners = dict(zip(ports, listen(ports), strict=True))
        self._session: Session | None = None
        self._opening = threading.Lock()
        self._users = 0
        self._used_at = time.monotonic()
        self._counting = threading.Lock()
        self._lost = False
        self._answers: dict[int, bool] = {}
        """Whether each of the node's ports answered when it was last tried."""
        self._ended = threading.Event()
        self._failure: HvdcloudError | None = None

    def start(self) -> Session:
        """Connect, and begin to take connections. Raises HvdcloudError: the node cannot be reached."""
        self._session = self._find()
        self._session.open()
        for ports, listener in self._listeners.items():
            threading.Thread(target=self._accept, args=(ports, listener), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        return self._session

    def wait(self) -> None:
        """Block until there is nothing left to forward to. Raises HvdcloudError: why."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Give the ports back and end every connection."""
        self._ended.set()
        for listener in self._listeners.values():
            # It wakes the thread that waits for a connection; closing alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._session is not None:
            self._session.close()

    def answers(self, ports: Ports) -> bool:
        """Whether a program of the node listens on this port. Raises HvdcloudError: the node cannot be reached."""
        with self._used():
            try:
                self._dial(ports).close()
            except NothingListensError:
                return False
            return True

    def wait_for(self, ports: Ports, *, seconds: float, every: float = 1.0) -> bool:
        """Wait until a program of the node listens on this port; False: none did in this many seconds."""
        deadline = time.monotonic() + seconds
        while not self._ended.is_set():
            with contextlib.suppress(NodeError):  # Said already.
                if self.answers(ports):
                    return True
            if time.monotonic() >= deadline or self._ended.wait(every):
                return False
        return False

    # -- one program's connection --------------------------------------------------------------------------------------

    def _accept(self, ports: Ports, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                self._ended.wait(_FULL_SECONDS)
                continue
            threading.Thread(target=self._serve, args=(ports, client), daemon=True).start()

    def _serve(self, ports: Ports, client: socket.socket) -> None:
        # The program sees that its connection ends; why was said on the terminal.
        with client, self._used(), contextlib.suppress(HvdcloudError):
            channel = self._dial(ports)
            sending = threading.Thread(target=_to_node, args=(client, channel), daemon=True)
            sending.start()
            _to_client(channel, client)
            sending.join()
            channel.close()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """A block in which the connection counts as used."""
        with self._counting:
            self._users += 1
        try:
            yield
        finally:
            with self._counting:
                self._users -= 1
                self._used_at = time.monotonic()

    def _dial(self, ports: Ports) -> Channel:
        name = ""
        try:
            for last in (False, True):
                session = self._connected()
                name = session.node.name
                try:
                    channel = session.dial(ports.remote, within=ANSWER_SECONDS)
                    break
                except NothingListensError:
                    raise
                except NodeError as error:
                    self._lose(session, error)
                    if last:
                        raise
        except NothingListensError:
            if self._answers.get(ports.remote) is not False:
                self._say(f"nothing listens on port {ports.remote} of {name} yet")
            self._answers[ports.remote] = False
            raise
        if self._answers.get(ports.remote) is False:
            self._say(f"port {ports.remote} of {name} answers now")
        self._answers[ports.remote] = True
        return channel

    # -- the connection to the node ------------------------------------------------------------------------------------

    def _connected(self) -> Session:
        """The open session. Raises HvdcloudError: the node cannot be reached for RECONNECT_SECONDS, or is gone."""
        with self._opening:
            deadline, pause = time.monotonic() + RECONNECT_SECONDS, _FIRST_PAUSE
            while True:
                try:
                    session = self._session = self._session or self._find()
                    session.open()
                except UsageError as error:  # No such cluster or node any more.
                    self._failure = error
                    self._ended.set()
                    raise
                except HvdcloudError as error:
                    if self._session is not None:
                        self._lose(self._session, error)
                    if time.monotonic() + pause >= deadline or self._ended.wait(pause):
                        raise
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                if self._lost:
                    self._lost = False
                    self._say(f"connected to {session.node.name} again")
                return session

    def _lose(self, session: Session, error: HvdcloudError) -> None:
        """Forget a session; the next one is made to the node as it is then, which may have another address."""
        session.close()
        if self._session is session:
            self._session = None
        if not self._lost and not self._ended.is_set():
            self._lost = True
            self._say(f"{error.message}; it is tried again")

    def _watch(self) -> None:
        """See that a connection that is used still lives, and close one that is not used."""
        while not self._ended.wait(min(CHECK_SECONDS, UNUSED_SECONDS / 4)):
            session = self._session
            if session is None or not self._opening.acquire(blocking=False):
                continue
            try:
                if self._users:
                    session.check(within=ANSWER_SECONDS)
                elif time.monotonic() - self._used_at >= UNUSED_SECONDS:
                    session.close()
            except NodeError as error:
                self._lose(session, error)
            finally:
                self._opening.release()


def _to_client(channel: Channel, client: socket.socket) -> None:
    # A side that is gone is seen by the other: its end is passed on.
    with contextlib.suppress(OSError):
        while data := channel.recv(CHUNK):
            client.sendall(data)
    with contextlib.suppress(OSError):
        # A node's program may have ended its side only; the end of the connection to the node ends both.
        client.shutdown(socket.SHUT_RDWR if channel.closed else socket.SHUT_WR)


def _to_node(client: socket.socket, channel: Channel) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(CHUNK):
            channel.sendall(data)
        channel.shutdown_write()
