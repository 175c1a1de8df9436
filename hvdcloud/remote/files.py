"""Files of one node, by SFTP. The node is not trusted: no answer is longer than what was asked for."""

from __future__ import annotations

import contextlib
import io
import stat
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from paramiko import SFTPClient

from hvdcloud.errors import NodeError
from hvdcloud.remote.connection import LOSSES, MOST_SECONDS
from hvdcloud.remote.ssh import CHUNK, Session
from hvdcloud.storage.base import ObjectMissingError
from hvdcloud.visible import words

if TYPE_CHECKING:
    from paramiko import Channel, SFTPFile

AHEAD = 16 << 20
"""Bytes of a file that are asked for at once, and kept in memory at most twice."""
SLOW_SECONDS = 120.0
"""How long a node may take to say that it is there, also behind 2 MB that a slow line is still sending."""
SILENT_SECONDS = 600.0
"""How long a node that still answers may take for one request, such as a write to a slow disk."""
_OVERHEAD = 1 << 20
"""Bytes that answers may have beside a file's bytes."""

OnBytes = Callable[[int], object]
"""Called with the number of bytes whenever some have come or gone, from any thread."""


@contextlib.contextmanager
def files_of(session: Session) -> Iterator[NodeFiles]:
    """The files of a node for the block. Raises NodeError: it does not answer, or is lost; also later, in the block."""
    connection = session.open(within=MOST_SECONDS)
    with session.watched(within=SLOW_SECONDS), contextlib.ExitStack() as stack:
        with session.losses():
            channel = connection.create_session()
            stack.callback(_close, channel)
            channel.settimeout(SILENT_SECONDS)
            channel.invoke_subsystem("sftp")
            measured = _Measured(session, channel)
            client = SFTPClient(cast("Channel", measured))
        yield NodeFiles(session, client, measured)


def _close(channel: Channel) -> None:
    # Where the connection is lost, there is nothing left to close.
    with contextlib.suppress(*LOSSES):
        channel.close()


class NodeFiles:
    """Reads and writes files. After a NodeError it is of no more use."""

    def __init__(self, session: Session, client: SFTPClient, measured: _Measured) -> None:
        self._session, self._client, self._measured = session, client, measured

    def read(self, path: PurePath, *, size: int, seconds: int, start: int = 0) -> Iterator[bytes]:
        """A file's bytes from `start` on.

        Args:
            size, seconds: of the file that is meant: its bytes, and its modification time since the epoch.

        Raises:
            ObjectMissingError: it is not there, or not any more; also in the middle of it.
        """
        name = str(path)
        while start < size:
            end = min(start + AHEAD, size)
            self._measured.expect(end - start)
            # Opened again for each part: what a node sends beyond it is dropped.
            with self._calls(f"{name} was read"), self._open(name, size=size, seconds=seconds) as file:
                file.seek(start)
                file.prefetch(end)
                while start < end:
                    if not (data := file.read(min(CHUNK, end - start))):
                        raise EOFError("it became shorter")
                    start += len(data)
                    yield data

    def _open(self, name: str, *, size: int, seconds: int) -> SFTPFile:
        with contextlib.suppress(FileNotFoundError):
            found = self._client.lstat(name)
            if stat.S_ISREG(found.st_mode or 0) and (found.st_size, found.st_mtime) == (size, seconds):
                return self._client.open(name, "rb")
        raise ObjectMissingError(f"{words(name)} was replaced while it was fetched", hint="hvdcloud pull")

    @contextlib.contextmanager
    def writing(self, path: PurePath, *, on_bytes: OnBytes = lambda count: None) -> Iterator[io.RawIOBase]:
        """A new file in place of what is there, in a folder that exists. Raises NodeError: not all of it was taken."""
        name = str(path)
        with self._calls(f"{name} was written"):
            file = self._client.open(name, "wb")
            file.set_pipelined(True)
        new = _NewFile(file, self._measured, on_bytes)
        with self._calls(f"{name} was written"):
            yield new
            file.close()
            if self._client.stat(name).st_size != new.size:
                raise EOFError("not all of it was kept; is its disk full?")

    @contextlib.contextmanager
    def _calls(self, doing: str) -> Iterator[None]:
        try:
            yield
        except LOSSES as error:
            raise NodeError(
                f"node {self._session.node.name} failed while {words(doing)}: {words(error) or type(error).__name__}",
                hint="the same command again continues where this ended",
            ) from error


class _NewFile(io.RawIOBase):
    def __init__(self, file: SFTPFile, measured: _Measured, on_bytes: OnBytes) -> None:
        self._file, self._measured, self._on_bytes = file, measured, on_bytes
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._measured.expect(0)
        try:
            self._file.write(bytes(data))
        except OSError as error:
            # The block reads files of this machine, which fail in the same way.
            raise EOFError(words(error)) from error
        self.size += len(data)
        self._on_bytes(len(data))
        return len(data)


class _Measured:
    """A channel that ends where the node sends more than it was asked for."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self._session, self._channel = session, channel
        self._left = _OVERHEAD

    def expect(self, count: int) -> None:
        """This many bytes of a file are asked for; paramiko may ask twice for some of them."""
        self._left = _OVERHEAD + 2 * count

    def recv(self, count: int) -> bytes:
        data = self._channel.recv(min(count, CHUNK))
        self._left -= len(data)
        if self._left < 0:
            raise EOFError("it sends more than it was asked for")
        self._session.hear()
        return data

    def send(self, data: bytes) -> int:
        try:
            return self._channel.send(data)
        except OSError:
            # A thread of paramiko's asks for what is read; that the connection is lost is known by what does not come.
            self._channel.close()
            return len(data)

    def recv_ready(self) -> bool:
        return self._channel.recv_ready() or self._channel.closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)
