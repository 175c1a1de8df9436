"""The manifest of this node in the bucket: what its uploader has put there, and is about to put there.

Another uploader of this node may write it too: one that was started while the last one still worked. What both know is
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hvdcloud.checkpoints.manifest import (
    LARGEST,
    BadManifestError,
    Entry,
    Manifest,
    manifest_name,
    read_manifest,
    run_prefix,
    to_json,
)
from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import Bucket, ObjectInfo, PreconditionError
from hvdcloud.storage.threads import parallel

_WORKERS = 8


class OwnManifest:
    """What the manifest says, and what it will say when it is next saved."""

    def __init__(self, bucket: Bucket, *, cluster: str, run: str, node: int) -> None:
        self._bucket = bucket
        self._cluster = cluster
        self._run = run
        self._node = node
        self._prefix = run_prefix(cluster, run)
        self._dirty = True  # the first scan writes a manifest, so that the bucket knows of this node
        self._generation = 0
        self._resumed: str | None = None
        self.complete = False
        self.replaced: str | None = None
        """A sentence about something else that was in its place."""
        self.entries: dict[str, Entry] = {}
        self.announced: dict[str, Entry] = {}
        """What is being uploaded, and uploads whose outcome is not known."""

    def load(self, *, resumed: str | None) -> None:
        """Continue from what an earlier uploader of this node has written. `resumed`: the run that was restored."""
        info = self._bucket.stat(manifest_name(self._cluster, self._run, self._node))
        self._generation = info.generation if info else 0
        manifest = self._read() if info else None
        self._resumed = resumed
        if manifest is not None:
            self.entries = {entry.name: entry for entry in manifest.files}
            self.complete = manifest.complete
            self._dirty = manifest.resumed != self._resumed
            self.adopt(manifest.uploading)

    def adopt(self, announced: Sequence[Entry]) -> None:
        """List uploads whose outcome is not known, if the bucket has their bytes."""
        stat = self._bucket.stat
        for outcome in parallel(announced, lambda entry: stat(self._prefix + entry.object), workers=_WORKERS):
            if outcome.error is not None:
                raise outcome.error
            entry, info = outcome.item, outcome.result
            if info is not None and (info.size, info.crc32c) == (entry.size, entry.crc32c):
                self.entries[entry.name] = replace(entry, generation=info.generation)
        self._dirty = self._dirty or bool(announced)

    def announce(self, entries: Sequence[Entry]) -> None:
        """Say what is about to be uploaded, before it is. Raises CheckpointError: the bucket did not take it."""
        self.announced |= {entry.name: entry for entry in entries}
        self._dirty = True
        self.save(complete=False)
        # What becomes of the uploads.
        self._dirty = True

    def arrived(self, entry: Entry, info: ObjectInfo) -> None:
        """List an upload that was announced."""
        self.entries[entry.name] = replace(entry, generation=info.generation)
        self.announced.pop(entry.name, None)

    def save(self, *, complete: bool) -> None:
        """Write the manifest if there is something new in it. Raises CheckpointError: the bucket did not take it."""
        self._dirty = self._dirty or complete != self.complete
        self.complete = complete
        if not self._dirty:
            return
        name = manifest_name(self._cluster, self._run, self._node)
        for _ in range(5):
            manifest = Manifest(
                cluster=self._cluster,
                run=self._run,
                node=self._node,
                complete=self.complete,
                files=[self.entries[key] for key in sorted(self.entries)],
                uploading=[self.announced[key] for key in sorted(self.announced)],
                resumed=self._resumed,
            )
            try:
                data = to_json(manifest)
                if len(data) > LARGEST:
                    why = f"a manifest of {len(manifest.files)} files is larger than the {LARGEST} bytes that are read"
                    raise CheckpointError(why, hint="put many small files into one, such as a tar file")
                info = self._bucket.write(name, data, if_generation=self._generation)
            except PreconditionError:
                self._merge(name)
            else:
                self._generation = info.generation
                self._dirty = False
                return
        raise CheckpointError(f"another process keeps writing {self._bucket.url}/{name}", hint="hvdcloud status")

    def _read(self) -> Manifest | None:
        """What an uploader of this node has written; None where that is nothing, or another process has put something
        else in its place, which the next manifest replaces: this node's files are here."""
        try:
            return read_manifest(self._bucket, cluster=self._cluster, run=self._run, node=self._node)
        except BadManifestError as error:
            self.replaced = f"{error.message}; this node writes it again"
            return None

    def _merge(self, name: str) -> None:
        """Another uploader of this node wrote meanwhile: keep what it knows and we don't."""
        info = self._bucket.stat(name)
        theirs = self._read() if info else None
        self._generation = info.generation if info else 0
        for entry in theirs.files if theirs else ():
            ours = self.entries.get(entry.name)
            if ours is None or ours.generation < entry.generation:
                self.entries[entry.name] = entry
