"""Checkpoints of nodes that have a bucket each, into the laptop's folder bucket; and what a run needs, to its nodes.

Objects come first, each verified by what its manifest promises, and the manifest that lists them last. What has arrived
of an object when the connection breaks is kept, and the next attempt continues there. The node is not trusted: names
are made here, never taken from it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvdcloud.checkpoints.manifest import (
    FOLDER,
    LARGEST,
    RUN_ID,
    BadManifestError,
    Manifest,
    continued_runs,
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
from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.node import paths
from hvdcloud.node.uploads.restore import choices_of
from hvdcloud.node.uploads.serve import RECEIVED
from hvdcloud.remote.files import NodeFiles, OnBytes, files_of
from hvdcloud.remote.ssh import CHUNK, Session
from hvdcloud.storage.base import CorruptObjectError, ObjectMissingError, disk_error, locked
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.replica import Original, Replicas

LOOKS = 5
"""How often a node is looked at again because it has replaced what was to be fetched."""
CALL_SECONDS = 600.0
"""How long a node may take to say what it has, or to verify what it was given."""
_POLL_SECONDS = 0.2
_GENERATIONS = 1 << 63

Described = Mapping[str, tuple[int, int]]
"""Generation and size of what describes a run, by its name in `.hvdcloud/`."""


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

    def bring(self, session: Session, *, on_bytes: OnBytes = lambda count: None) -> int:
        """Fetch what is new on a node; returns how many checkpoints came.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: what it has cannot be used; everything else of it is here.
            CapacityError: this disk is full.
        """
        before: dict[str, CheckpointError] = {}
        with contextlib.ExitStack() as stack:
            # Most looks find nothing that is new.
            there = functools.cache(lambda: stack.enter_context(files_of(session)))
            node = _Node(self, there, index=session.node.index, on_bytes=on_bytes)
            for _ in range(LOOKS):
                whole = node.bring(self._look(session))
                # What was replaced by as many bytes in the same second looks damaged until it is looked at again.
                if whole and node.damaged.keys() <= before.keys():
                    break
                before = node.damaged
        for error in node.damaged.values():
            raise error
        return node.files

    def _look(self, session: Session) -> Mapping[str, Described]:
        """What a node has of each run. What is not in the form that is expected is left out."""
        runs = _ask(session, "look", cluster=self.cluster, id=self._id).get("runs")
        return {
            run: {name: (pair[0], pair[1]) for name, pair in found.items() if _is_generation_and_size(pair)}
            for run, found in sorted(runs.items() if isinstance(runs, dict) else ())
            if RUN_ID.fullmatch(run) and run.endswith(f"-{self._id}") and isinstance(found, dict)
        }

    def send(self, session: Session, run: str, *, on_bytes: OnBytes = lambda count: None) -> int:
        """Give a node what it lacks to continue from a run; returns how many checkpoints it lacked.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: the run has no checkpoints here, or one of them cannot be read.
        """
        checkpoints, manifests = self._needed(run)
        lacking = _lacking(session, checkpoints)
        # The manifests last: they say that the rest has arrived.
        if wanted := [*lacking, *_lacking(session, manifests)]:
            with files_of(session) as there:
                for original in wanted:
                    self._put(there, original, on_bytes=on_bytes)
                    _ask(session, "keep", objects=[asdict(original)])
        return len(lacking)

    def _put(self, there: NodeFiles, original: Original, *, on_bytes: OnBytes) -> None:
        file, left = Path(self.bucket.root, original.name), original.size
        target = Replicas(FolderBucket(paths.bucket_dir()), key=RECEIVED).partial(original)
        with there.writing(target, on_bytes=on_bytes) as new:
            try:
                with file.open("rb") as source:
                    while left and (data := source.read(min(CHUNK, left))):
                        new.write(data)
                        left -= len(data)
            except OSError as error:
                raise disk_error(error, path=file, doing="reading") from error
        if left:
            raise CheckpointError(f"{file} became shorter while it was sent", hint="hvdcloud run again")

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
            for each, _ in continued_runs(self.bucket, cluster=self.cluster, run=run)
            for info in self.bucket.list(f"{run_prefix(self.cluster, each)}{FOLDER}/manifest-")
        ]
        return list(checkpoints.values()), manifests


class _Node:
    """What one node has."""

    def __init__(self, mirror: Mirror, there: Callable[[], NodeFiles], *, index: int, on_bytes: OnBytes) -> None:
        self.files = 0
        """Checkpoints that have come."""
        self.damaged: dict[str, CheckpointError] = {}
        """What could not be used of the last look, and why."""
        self._mirror, self._bucket, self._replicas = mirror, mirror.bucket, mirror.replicas
        self._there, self._index, self._on_bytes = there, index, on_bytes

    def bring(self, runs: Mapping[str, Described]) -> bool:
        """Returns whether all that was looked at is here, or damaged; else it was replaced meanwhile."""
        self.damaged = {}
        whole = True
        for run, found in runs.items():
            name = manifest_name(self._mirror.cluster, run, self._index)
            if manifest := _described(name, found):
                whole &= self._bring_run(run, manifest)
            for name in descriptions(self._mirror.cluster, run, self._index):
                if (each := _described(name, found)) and each.size <= LARGEST_DESCRIPTION:
                    whole &= self._receive(each)
        return whole

    def _bring_run(self, run: str, original: Original) -> bool:
        """The checkpoints that a manifest lists, and then the manifest."""
        if not self._replicas.lacks(original):
            return True
        try:
            data, manifest = self._read(run, original)
        except BadManifestError as error:
            self.damaged[str(original)] = error
            return True
        except ObjectMissingError:
            return False
        wanted = {each.name: each for each in originals(manifest)}
        if lacking := [each for each in wanted.values() if self._replicas.lacks(each)]:
            # Until all of it is here: a kill at any moment leaves a bucket that can be verified.
            before = None
            with contextlib.suppress(BadManifestError):
                before = read_manifest(self._bucket, cluster=self._mirror.cluster, run=run, node=self._index)
            now = in_between(manifest, before, lacks=lambda name: self._replicas.lacks(wanted[name]))
            self._bucket.write(original.name, to_json(now))
        damaged, whole = len(self.damaged), True
        for each in lacking:
            whole &= self._receive(each, is_checkpoint=True)
        if whole and len(self.damaged) == damaged:
            self._replicas.receive(original, [data])
        return whole

    def _read(self, run: str, original: Original) -> tuple[bytes, Manifest]:
        """A manifest. Raises BadManifestError: it cannot be used; ObjectMissingError: there is another one now."""
        if original.size > LARGEST:
            raise BadManifestError(
                f"the manifest of node {self._index} for run {run} has {original.size} bytes",
                hint="hvdcloud down --force gives up what this node wrote",
            )
        data = b"".join(self._pieces(original))
        return data, read_own_manifest(data, cluster=self._mirror.cluster, run=run, node=self._index)

    def _receive(self, original: Original, *, is_checkpoint: bool = False) -> bool:
        """Returns whether the object is here, or damaged; else it was replaced meanwhile."""
        if not self._replicas.lacks(original):
            return True
        try:
            start = self._replicas.arrived(original)
            self._replicas.receive(original, map(self._counted, self._pieces(original, start=start)), start=start)
        except CorruptObjectError as error:
            # The others are not damaged.
            self.damaged[str(original)] = error
        except ObjectMissingError:
            return False
        else:
            self.files += is_checkpoint
        return True

    def _pieces(self, original: Original, *, start: int = 0) -> Iterator[bytes]:
        path = paths.bucket_dir() / original.name
        seconds = original.generation // 1_000_000_000
        return self._there().read(path, size=original.size, seconds=seconds, start=start)

    def _counted(self, piece: bytes) -> bytes:
        self._on_bytes(len(piece))
        return piece


def _described(name: str, found: Described) -> Original | None:
    """What describes a run, by its name, if the node has it."""
    pair = found.get(short_name(name))
    return Original(name=name, generation=pair[0], size=pair[1]) if pair is not None else None


def _lacking(session: Session, wanted: Sequence[Original]) -> list[Original]:
    """The objects that a node does not have, or has only as they were earlier."""
    lacks = _ask(session, "lacks", objects=[asdict(each) for each in wanted]).get("lacks")
    if not isinstance(lacks, list) or not all(type(each) is int and 0 <= each < len(wanted) for each in lacks):
        raise NodeError(
            f"node {session.node.name} does not say which objects it lacks",
            hint=f"hvdcloud ssh {session.node.index} opens a shell there",
        )
    return [wanted[index] for index in sorted(set(lacks))]


def _ask(session: Session, what: str, **request: Any) -> dict[str, Any]:
    return session.call("bucket", payload={"op": what, **request}, timeout=CALL_SECONDS)


def _is_generation_and_size(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(each) is int and 0 <= each < _GENERATIONS for each in pair)
    )
