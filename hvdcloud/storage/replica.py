"""Objects of one folder bucket in another, each with the generation that it has there, so that the same manifests hold.

Bytes are written to a file beside the objects; they are verified, flushed to disk, and become the object in one move.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.errors import CapacityError
from hvdcloud.storage.base import CorruptObjectError, check_name, disk_error
from hvdcloud.storage.checksum import crc32c_of_file
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.folder_tree import TEMPORARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """An object of the other bucket."""

    name: str
    size: int  # Bytes.
    generation: int
    crc32c: str | None = None  # None: it is not known, as of a log; its size has to do.


class Replicas:
    """The copies in `bucket`.

    Args:
        key: names the folder for what has not arrived whole. One process at a time may use a folder.
    """

    def __init__(self, bucket: FolderBucket, *, key: str) -> None:
        self._bucket = bucket
        self.folder = bucket.root / TEMPORARY / f"replicas-{key}"

    def make_folder(self) -> None:
        """Raises CapacityError, CheckpointError: it cannot be made."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, path=self.folder, doing="making") from error

    def lacks(self, original: Original) -> bool:
        """Whether the bucket does not have this very object."""
        return self._bucket.present(original.name) != (original.size, original.generation)

    def is_behind(self, original: Original) -> bool:
        """Whether the bucket has no such object, or an earlier one."""
        found = self._bucket.present(original.name)
        return found is None or found[1] < original.generation

    def receive(self, original: Original, pieces: Iterable[bytes]) -> None:
        """Write the object, verify it, and make it visible.

        Raises:
            CorruptObjectError: other bytes than those that were promised came; none of them is kept.
            CapacityError: the disk is full.
            CheckpointError: the bucket can't hold it.
            whatever `pieces` raises.
        """
        check_name(original.name)
        self.make_folder()
        if original.size > shutil.disk_usage(self.folder).free:
            raise CapacityError(
                f"no space left for {original.name} ({original.size} bytes) in {self._bucket.url}",
                hint="free some space and type the command again",
            )
        # One of each name at a time.
        partial = self.folder / hashlib.sha256(original.name.encode(errors="surrogatepass")).hexdigest()[:32]
        try:
            with partial.open("wb") as file:
                file.writelines(pieces)
            self._verify(partial, original)
            self._bucket.adopt(partial, original.name, generation=original.generation)
        except CorruptObjectError:
            partial.unlink(missing_ok=True)
            raise
        except OSError as error:
            raise disk_error(error, path=partial, doing="writing") from error

    def forget(self) -> None:
        """Remove what has not arrived whole, where nothing of it is wanted any more."""
        with contextlib.suppress(OSError):
            for file in self.folder.iterdir():
                file.unlink()
            self.folder.rmdir()

    def _verify(self, partial: Path, original: Original) -> None:
        if original.crc32c is None:
            is_whole = partial.stat().st_size == original.size
        else:
            is_whole = crc32c_of_file(partial) == (original.size, original.crc32c)
        if not is_whole:
            raise CorruptObjectError(
                f"{original.name} does not verify: its manifest promises {original.size} bytes with CRC32C "
                f"{original.crc32c}, and other bytes came",
                hint="hvdcloud pull tries again; if it stays so, take an earlier checkpoint",
            )
