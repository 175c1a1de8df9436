"""A node's files over SFTP, where a folder is its `/`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import paramiko


class Disk(paramiko.SFTPServerInterface):
    """What a node's sshd serves.

    Args:
        root: the folder.
        transport: of the connection.
        send: is told how many bytes of a file go now; False: the connection is cut instead.
    """

    def __init__(
        self,
        server: paramiko.ServerInterface,
        transport: paramiko.Transport,
        *,
        root: Path,
        send: Callable[[int], bool] = lambda count: True,
    ) -> None:
        super().__init__(server)
        self._root, self._transport, self._send = root, transport, send

    def _path(self, name: str) -> str:
        return f"{self._root}{name}"

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> paramiko.SFTPHandle | int:
        try:
            descriptor = os.open(self._path(path), flags, 0o600)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return _Handle(descriptor, flags, self._transport, self._send)

    def stat(self, path: str) -> paramiko.SFTPAttributes | int:
        return self._status(path, follow=True)

    def lstat(self, path: str) -> paramiko.SFTPAttributes | int:
        return self._status(path, follow=False)

    def _status(self, path: str, *, follow: bool) -> paramiko.SFTPAttributes | int:
        try:
            return paramiko.SFTPAttributes.from_stat(Path(self._path(path)).stat(follow_symlinks=follow))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)


class _Handle(paramiko.SFTPHandle):
    def __init__(self, descriptor: int, flags: int, transport: paramiko.Transport, send: Callable[[int], bool]) -> None:
        super().__init__(flags)
        self._descriptor, self._transport, self._send = descriptor, transport, send

    def read(self, offset: int, length: int) -> bytes | int:
        data = os.pread(self._descriptor, length, offset)
        if not self._send(len(data)):
            self._transport.close()
            return paramiko.SFTP_FAILURE
        return data

    def write(self, offset: int, data: bytes) -> int:
        os.pwrite(self._descriptor, data, offset)
        return paramiko.SFTP_OK

    def close(self) -> None:
        os.close(self._descriptor)
