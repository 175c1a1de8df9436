"""What of a run is not yet, or no longer, verified on this disk: the question that `down` asks."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.checkpoints.manifest import Entry, load_manifests, manifest_name
from hvdcloud.checkpoints.verified_files import Verified, VerifiedFiles
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.checksum import crc32c_of_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """Something that would be lost.

    Args:
        name: the object's name relative to `CLUSTER/RUN/`; of a manifest where a node is meant.
        reason: for the user, such as "not pulled".
    """

    name: str
    reason: str


def unverified(bucket: Bucket, *, cluster: str, run: str, verified_files: VerifiedFiles) -> list[Unverified]:
    """Compare the manifests with the ledger and the disk; empty means that every checkpoint of the run is safe here.

    A file that has the size and modification time it had when it was verified is trusted, any other is read again.

    Raises:
        CheckpointError: a manifest is not valid, or the bucket can't be reached.
    """
    manifests = load_manifests(bucket, cluster=cluster, run=run)
    if not manifests:
        return [Unverified(name=manifest_name(cluster, run, 0), reason="no node has written a manifest")]
    found: list[Unverified] = []
    for manifest in manifests:
        if not manifest.complete:
            name = manifest_name(cluster, run, manifest.node)
            found.append(Unverified(name=name, reason=f"node {manifest.node} has not finished uploading"))
        for entry in manifest.files:
            known = verified_files.get(cluster=cluster, run=run, name=entry.name)
            if reason := _reason(entry, known):
                found.append(Unverified(name=entry.name, reason=reason))
    return found


def _reason(entry: Entry, known: Verified | None) -> str | None:
    if known is None:
        return "not pulled"
    if (known.size, known.crc32c) != (entry.size, entry.crc32c):
        return "a newer one is in the bucket"
    path = Path(known.path)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return f"{path} is not a file any more"
        if (status.st_size, status.st_mtime_ns) == (known.size, known.mtime_ns):
            return None
        if crc32c_of_file(path) == (entry.size, entry.crc32c):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} was deleted"
    except OSError as error:
        return f"{path} can't be read: {error.strerror or error}"
    return f"{path} was changed after it was pulled"
