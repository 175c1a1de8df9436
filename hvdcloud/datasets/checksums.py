"""CRC32C of files, kept so that a file that has not changed is not read again.

A cache in SQLite and nothing more: without it, or where it says something wrong, files are read again. A wrong checksum
cannot do harm: the bucket refuses bytes that do not have the promised one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from hvdcloud.cluster.files import make_folder, open_private, state_root
from hvdcloud.datasets.scan import Signature
from hvdcloud.errors import HvdcloudError

_FILE = "checksums.sqlite3"
_TABLE = (
    "CREATE TABLE IF NOT EXISTS checksums (place TEXT NOT NULL, name TEXT NOT NULL, size INTEGER, modified INTEGER,"
    " inode INTEGER, crc32c TEXT, PRIMARY KEY (place, name)) WITHOUT ROWID"
)
_COMMIT_SECONDS = 0.5
_SETTLED_SECONDS = 2.0
"""A file that was changed later than this before it was read may change again without another modification time: some
disks keep whole seconds."""


class ChecksumIndex:
    """What is known of the files of one place: a folder, or a bucket that knows no checksums. For one thread.

    Args:
        place: the folder's path or the bucket's URL.
    """

    def __init__(self, connection: sqlite3.Connection | None, place: str) -> None:
        self._connection = connection
        # A folder's name may be no text, which SQLite does not take.
        self._place = place = place.encode("utf-8", "backslashreplace").decode()
        self._known: dict[str, tuple[Signature, str]] = {}
        self._committed = time.monotonic()
        rows: Iterable[tuple[str, int, int, int, str]] = []
        with contextlib.suppress(sqlite3.Error):
            if connection is not None:
                columns = "name, size, modified, inode, crc32c"
                rows = connection.execute(f"SELECT {columns} FROM checksums WHERE place = ?", (place,)).fetchall()
        for name, size, modified, inode, crc32c in rows:
            self._known[name] = (Signature(size, modified, inode), crc32c)

    def get(self, name: str, signature: Signature) -> str | None:
        """The CRC32C of this file; None: it has to be read."""
        known = self._known.get(name)
        return known[1] if known is not None and known[0] == signature else None

    def put(self, name: str, signature: Signature, crc32c: str, *, settled: bool = False) -> None:
        """Keep it, unless the file is so new that it may change unseen; `settled`: it cannot."""
        if not settled and time.time() - signature.modified / 1e9 < _SETTLED_SECONDS:
            return
        self._known[name] = (signature, crc32c)
        row = (self._place, name, signature.size, signature.modified, signature.inode, crc32c)
        self._write("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?, ?, ?, ?)", [row])

    def forget(self, names: Iterable[str]) -> None:
        """Remove the checksums of files that are gone or have changed."""
        gone = [name for name in names if self._known.pop(name, None) is not None]
        self._write("DELETE FROM checksums WHERE place = ? AND name = ?", [(self._place, name) for name in gone])

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget all other names."""
        self.forget(list(self._known.keys() - set(names)))

    def _write(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        if self._connection is None or not rows:
            return
        # It costs time to have no index, and nothing else: a full disk must not stop an upload.
        with contextlib.suppress(sqlite3.Error):
            self._connection.executemany(statement, rows)
            if time.monotonic() - self._committed >= _COMMIT_SECONDS:
                self._committed = time.monotonic()
                self._connection.commit()


@contextlib.contextmanager
def opened_index() -> Iterator[sqlite3.Connection | None]:
    """The file of the index during the block; None: there can be none, and every file is read."""
    connection = _connect(state_root() / "_data" / _FILE)
    try:
        yield connection
    finally:
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.commit()
            connection.close()


def _connect(path: Path) -> sqlite3.Connection | None:
    for _ in range(2):
        try:
            make_folder(path.parent)
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
            connection = sqlite3.connect(path, timeout=5.0)
        except (OSError, HvdcloudError, sqlite3.Error):
            return None
        try:
            # What is lost in a power failure is read again.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(_TABLE)
            connection.execute("SELECT place, name, size, modified, inode, crc32c FROM checksums LIMIT 1")
        except sqlite3.DatabaseError as error:
            connection.close()
            # An OperationalError: another process has held it for seconds, or the disk is full.
            if isinstance(error, sqlite3.OperationalError):
                return None
            # Damaged: it is made again.
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            return connection
    return None
