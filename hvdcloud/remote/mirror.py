"""Checkpoints of nodes that have a bucket each, into the laptop's folder bucket; and what a run needs, to its nodes.

Objects come first, each verified by what its manifest promises, and the manifest that lists them last. What has arrived
of an object when the connection breaks is kept, and the next attempt continues there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.checkpoints.manifest import (
    FOLDER,
    LARGEST,
    RUN_ID,
    BadManifestError,
    Manifest,
    load_manifests,
    manifest_name,
    read_manifest,
    run_prefix,
    to_json,
)
from hvdcloud.checkpoints.mirror import (
    LARGEST_DESCRIPTION,
    descriptions,
    in_between,
    originals,
    read_own_manifest,
    short_name,
)
from hvdcloud.errors import CheckpointError
from hvdcloud.node.uploads.restore import choices_of
from hvdcloud.remote.node_bucket import NodeBucket, open_bucket_of
from hvdcloud.remote.ssh import Session
from hvdcloud.storage.base import CorruptObjectError, locked
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.replica import Original, Replicas

LOOKS = 5
"""How often a node is looked at again because it has replaced what was to be fetched."""
PUBLISH_SECONDS = 5.0
"""How often the laptop's bucket says what has arrived."""
_POLL_SECONDS = 0.2

OnBytes = Callable[[int], object]
"""Called with the number of bytes whenever some have come or gone, from any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What came of one node."""

    files: int = 0
    """Checkpoints that were not here before."""
    whole: bool = True
    """False: the node replaced files faster than they arrived."""


class Mirror:
    """The laptop's copies of what the nodes of one cluster incarnation have. Safe to use from several threads, for one
    node each."""

    def __init__(self, bucket: FolderBucket, *, cluster: str, cluster_id: str) -> None:
        self.bucket = bucket
        self.replicas = Replicas(bucket, key=cluster)
        self.cluster = cluster
        self._id = cluster_id

    @contextlib.contextmanager
    def alone(self, *, wait: Callable[[], object] | None = None) -> Iterator[bool]:
        """Whether no other process fetches into this bucket during the block.

        Args:
            wait: called while another process does, until it has ended or this raises; None: do not wait.
        """
        self.replicas.make_folder()
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(self.replicas.folder, seconds=0))
                except BlockingIOError:
                    if wait is None:
                        yield False
                        return
                    wait()
                    time.sleep(_POLL_SECONDS)
                else:
                    yield True
                    return

    def bring(self, session: Session, *, on_bytes: OnBytes = lambda count: None) -> Brought:
        """Fetch what is new on a node.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: what it has cannot be used; everything else of it is here.
            CapacityError: this disk is full.
        """
        node, files = session.node.index, 0
        errors: list[CheckpointError] = []
        with open_bucket_of(session) as there:
            for _ in range(LOOKS):
                errors = []
                whole = True
                for run, found in sorted(there.look(self.cluster, self._id).items()):
                    if not RUN_ID.fullmatch(run) or not run.endswith(f"-{self._id}"):
                        continue
                    try:
                        part = _Part(self, there, run=run, node=node, found=found, on_bytes=on_bytes)
                        whole &= part.bring()
                        files += part.files
                    except (BadManifestError, CorruptObjectError) as error:
                        errors.append(error)
                if whole or errors:
                    break
        if errors:
            raise errors[0]
        return Brought(files=files, whole=whole)

    def manifest(self, run: str, node: int) -> Manifest | None:
        """A node's manifest as it is here; one that cannot be used counts as none."""
        try:
            return read_manifest(self.bucket, cluster=self.cluster, run=run, node=node)
        except BadManifestError:
            return None

    def send(self, session: Session, run: str, *, on_bytes: OnBytes = lambda count: None) -> int:
        """Give a node what it lacks to continue from a run; returns how many checkpoints it lacked.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: the run has no checkpoints here, or one of them cannot be read.
        """
        checkpoints, manifests = self._needed(run)
        with open_bucket_of(session) as there:
            lacking = there.lacking(checkpoints)
            # The manifests last: they say that the rest has arrived.
            for original in (*lacking, *there.lacking(manifests)):
                there.put(original, Path(self.bucket.root, original.name), on_bytes=on_bytes)
        return len(lacking)

    def _needed(self, run: str) -> tuple[list[Original], list[Original]]:
        """Checkpoints, and the manifests that list them, of a run and of those that it continued from."""
        checkpoints: dict[str, Original] = {}
        for candidates in choices_of(self.bucket, cluster=self.cluster, run_from=run).values():
            for each in candidates:
                name = each.prefix + each.entry.object
                if (present := self.bucket.present(name)) is not None and present[0] == each.entry.size:
                    checkpoints[name] = Original(
                        name=name, size=present[0], generation=present[1], crc32c=each.entry.crc32c
                    )
        manifests = [
            Original(name=info.name, size=info.size, generation=info.generation)
            for each in self._chain(run)
            for info in self.bucket.list(f"{run_prefix(self.cluster, each)}{FOLDER}/manifest-")
        ]
        return list(checkpoints.values()), manifests

    def _chain(self, run: str) -> list[str]:
        """The run, and those that it continued from."""
        found: list[str] = []
        now: str | None = run
        while now is not None and now not in found:
            found.append(now)
            manifests = load_manifests(self.bucket, cluster=self.cluster, run=now)
            now = next((manifest.resumed for manifest in manifests if manifest.resumed), None)
        return found


class _Part:
    """A node's part of one run."""

    def __init__(
        self,
        mirror: Mirror,
        there: NodeBucket,
        *,
        run: str,
        node: int,
        found: Mapping[str, tuple[int, int]],
        on_bytes: OnBytes,
    ) -> None:
        self.files = 0
        self._mirror = mirror
        self._bucket, self._replicas = mirror.bucket, mirror.replicas
        self._there = there
        self._run, self._node = run, node
        self._cluster = mirror.cluster
        self._found = found
        self._on_bytes = on_bytes
        self._name = manifest_name(self._cluster, run, node)

    def bring(self) -> bool:
        """Returns whether everything that was looked at is here; else it was replaced meanwhile."""
        whole = self._bring_checkpoints()
        wanted = []
        for name in descriptions(self._cluster, self._run, self._node):
            described = self._found.get(short_name(name))
            if described is not None and described[1] <= LARGEST_DESCRIPTION:
                wanted.append(Original(name=name, generation=described[0], size=described[1]))
        return self._receive(wanted) and whole

    def _bring_checkpoints(self) -> bool:
        described = self._found.get(short_name(self._name))
        if described is None:
            return True
        original = Original(name=self._name, generation=described[0], size=described[1])
        if not self._replicas.lacks(original):
            return True
        if original.size > LARGEST:
            raise BadManifestError(
                f"the manifest of node {self._node} for run {self._run} has {original.size} bytes",
                hint="hvdcloud down --force gives up what this node wrote",
            )
        data = self._read(original)
        if data is None:
            return False
        manifest = read_own_manifest(data, cluster=self._cluster, run=self._run, node=self._node)
        checkpoints = [each for each in originals(manifest) if self._replicas.lacks(each)]
        whole = not checkpoints or self._bring_files(manifest, checkpoints)
        if whole:
            self._replicas.receive(original, [data])
        return whole

    def _bring_files(self, manifest: Manifest, checkpoints: Sequence[Original]) -> bool:
        published = 0.0

        def publish() -> None:
            nonlocal published
            if time.monotonic() - published < PUBLISH_SECONDS:
                return
            before = self._mirror.manifest(self._run, self._node)
            by_name = {each.name: each for each in originals(manifest)}
            now = in_between(manifest, before, lacks=lambda name: self._replicas.lacks(by_name[name]))
            self._bucket.write(self._name, to_json(now))
            published = time.monotonic()

        publish()
        return self._receive(checkpoints, after_each=publish, are_checkpoints=True)

    def _receive(
        self,
        wanted: Sequence[Original],
        *,
        after_each: Callable[[], object] = lambda: None,
        are_checkpoints: bool = False,
    ) -> bool:
        lacking = [(each, self._replicas.arrived(each)) for each in wanted if self._replicas.lacks(each)]
        starts = {each.name: start for each, start in lacking}
        whole = True
        damaged: CorruptObjectError | None = None
        for original, pieces in self._there.get(lacking):
            if pieces is None:
                whole = False
                continue
            try:
                self._replicas.receive(original, map(self._counted, pieces), start=starts[original.name])
            except CorruptObjectError as error:
                # The others are not damaged.
                damaged = damaged or error
                continue
            self.files += are_checkpoints
            after_each()
        if damaged is not None:
            raise damaged
        return whole

    def _read(self, original: Original) -> bytes | None:
        for _, pieces in self._there.get([(original, 0)]):
            return None if pieces is None else b"".join(pieces)
        return None

    def _counted(self, piece: bytes) -> bytes:
        self._on_bytes(len(piece))
        return piece
