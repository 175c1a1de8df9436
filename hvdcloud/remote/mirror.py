"""Checkpoints of nodes that have a bucket each, into the laptop's folder bucket; and what a run needs, to its nodes.

Objects come first, each verified by what its manifest promises, and the manifest that lists them last. The node is not
trusted: it may send only what its own manifest lists, and what describes its part of a run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.checkpoints.manifest import (
    FOLDER,
    LARGEST,
    RUN_ID,
    BadManifestError,
    Manifest,
    check_owner,
    continued_runs,
    descriptions,
    from_json,
    manifest_name,
    read_manifest,
    run_prefix,
    to_json,
)
from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node.uploads.restore import choices_of
from hvdcloud.remote.code import exactly
from hvdcloud.remote.ssh import Session, Stream, request
from hvdcloud.storage.base import CorruptObjectError, ObjectInfo, disk_error, locked
from hvdcloud.storage.folder import FolderBucket

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Node

LOOKS = 5
"""How often a node is looked at again because it has replaced what was to be fetched."""
CALL_SECONDS = 600.0
"""How long a node may take to say what it lacks, or to verify what it was given."""
LARGEST_DESCRIPTION = 1 << 30
"""Bytes of a log or of samples; a larger one stays on its node."""
SILENT_SECONDS = 600.0
"""How long a node may take for the next piece of a file, as from a slow disk."""
_POLL_SECONDS = 0.2
_GENERATIONS = 1 << 63


class Mirror:
    """The laptop's copies of what the nodes of one cluster incarnation have. Safe to use from several threads, for one
    node each."""

    def __init__(self, bucket: FolderBucket, *, cluster: str, cluster_id: str) -> None:
        self.bucket = bucket
        self.cluster = cluster
        self.id = cluster_id

    @contextlib.contextmanager
    def alone(self, *, wait: Callable[[], object] | None = None) -> Iterator[bool]:
        """Whether no other process fetches into this bucket during the block.

        Args:
            wait: called while another process does, until it has ended or this raises; None: do not wait.
        """
        folder = self.bucket.root / self.cluster
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, path=folder, doing="making") from error
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(folder, seconds=0))
                except BlockingIOError:
                    if wait is None:
                        yield False
                        return
                    wait()
                    time.sleep(_POLL_SECONDS)
                else:
                    yield True
                    return

    def bring(self, session: Session) -> int:
        """Fetch what is new on a node; returns how many checkpoints came.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: what it has cannot be used; everything else of it is here.
            CapacityError: this disk is full.
        """
        files = 0
        for _ in range(LOOKS):
            with session.stream("send", silent=SILENT_SECONDS) as stream:
                arrival = _Arrival(self, session, stream)
                arrival.take_all()
            files += arrival.files
            if arrival.whole:
                break
        for error in arrival.damaged:
            raise error
        return files

    def send(self, session: Session, run: str) -> int:
        """Send a node what it lacks to continue from a run; returns how many objects it lacked.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: the run has no checkpoints here, or one of them cannot be read.
        """
        needed = self._needed(run)
        payload = {"objects": [asdict(each) for each in needed]}
        lacks = session.call("bucket", payload=payload, timeout=CALL_SECONDS).get("lacks")
        if not isinstance(lacks, list) or not all(type(each) is int and 0 <= each < len(needed) for each in lacks):
            raise _unusable(session.node)
        if lacking := [needed[index] for index in sorted(set(lacks))]:
            session.call(
                "bucket",
                payload={"keep": True, "objects": [asdict(each) for each in lacking]},
                content=self._content(lacking),
                content_size=sum(each.size for each in lacking),
                timeout=CALL_SECONDS,
            )
        return len(lacking)

    def _content(self, wanted: Sequence[ObjectInfo]) -> Iterator[bytes]:
        for original in wanted:
            file = Path(self.bucket.root, original.name)
            try:
                yield from exactly(file, size=original.size)
            except EOFError:
                hint = "hvdcloud run again"
                raise CheckpointError(f"{file} became shorter while it was sent", hint=hint) from None
            except OSError as error:
                raise disk_error(error, path=file, doing="reading") from error

    def _needed(self, run: str) -> list[ObjectInfo]:
        """Checkpoints of a run and of those that it continued from, and then the manifests that list them: they say
        that the rest has arrived."""
        checkpoints: dict[str, ObjectInfo] = {}
        for candidates in choices_of(self.bucket, cluster=self.cluster, run_from=run).values():
            for each in candidates:
                name, size = each.prefix + each.entry.object, each.entry.size
                if (present := self.bucket.present(name)) is not None and present[0] == size:
                    checkpoints[name] = ObjectInfo(
                        name=name, size=size, generation=present[1], crc32c=each.entry.crc32c
                    )
        manifests = [
            info
            for each, _ in continued_runs(self.bucket, cluster=self.cluster, run=run)
            for info in self.bucket.list(f"{run_prefix(self.cluster, each)}{FOLDER}/manifest-")
        ]
        return [*checkpoints.values(), *manifests]


class _Arrival:
    """What comes from a node: the checkpoints that this machine lacks, the manifests that list them, and what describes
    the runs."""

    def __init__(self, mirror: Mirror, session: Session, stream: Stream) -> None:
        self.files = 0
        """Checkpoints that have come."""
        self.damaged: list[CheckpointError] = []
        """Why some of it could not be used."""
        self.whole = True
        """All of it is here, or damaged; else some was replaced meanwhile."""
        self._cluster, self._id, self._bucket = mirror.cluster, mirror.id, mirror.bucket
        self._session, self._stream = session, stream

    def take_all(self) -> None:
        """Take what is new there.

        Raises:
            NodeError: the connection was lost, the node's program failed, or it sends something else.
            CapacityError, CheckpointError: this machine's bucket cannot be written, or a manifest is too large.
        """
        cluster, node = self._cluster, self._session.node.index
        self._stream.write(request({"cluster": cluster, "id": self._id, "node": node}))
        there = self._answer().get("objects")
        if not isinstance(there, dict):
            raise self._unusable()

        def is_new(name: str) -> bool:
            return name in there and there[name] != [*(self._bucket.present(name) or ())]

        for run in sorted({"".join(name.split("/")[1:2]) for name in there}):
            if RUN_ID.fullmatch(run) and run.endswith(f"-{self._id}"):
                if is_new(manifest_name(cluster, run, node)):
                    self._take_files(run)
                names = filter(is_new, descriptions(cluster, run, node))
                for found in self._ask([(name, None) for name in names]):
                    if found is not None:
                        if found.size > LARGEST_DESCRIPTION:
                            raise self._unusable()
                        self._receive(found, found)

    def _take_files(self, run: str) -> None:
        """Take what a node's manifest lists, and then the manifest, if all of it came."""
        cluster, node = self._cluster, self._session.node.index
        name, source = manifest_name(cluster, run, node), f"of node {node} for run {run}"
        (found,) = self._ask([(name, None)])
        if found is None:
            return
        if found.size > LARGEST:
            raise BadManifestError(
                f"the manifest {source} has {found.size} bytes",
                hint="hvdcloud down --force gives up what this node wrote",
            )
        data = b"".join(self._stream.take(found.size))
        try:
            manifest = check_owner(from_json(data, source=source), cluster, run, node, source=source)
        except BadManifestError as error:
            self.damaged.append(error)
            return
        wanted = [
            each for each in originals(manifest) if self._bucket.present(each.name) != (each.size, each.generation)
        ]
        if wanted:
            # Until all of it is here: a kill at any moment leaves a bucket that can be verified.
            before = None
            with contextlib.suppress(BadManifestError):
                before = read_manifest(self._bucket, cluster=cluster, run=run, node=node)
            lacking = {each.name for each in wanted}
            self._bucket.write(name, to_json(in_between(manifest, before, lacking=lacking)))
        asked = self._ask([(each.name, each.generation) for each in wanted])
        came = [self._receive(original, sent) for original, sent in zip(wanted, asked, strict=True)]
        self.files += sum(came)
        if all(came):
            self._bucket.receive(found, [data])

    def _ask(self, wanted: Sequence[tuple[str, int | None]]) -> Iterator[ObjectInfo | None]:
        """What the node sends of these objects, by name and generation (None: any), whose bytes must be taken before
        the next; None: it was replaced."""
        if wanted:
            self._stream.write(request(wanted))
        for name, generation in wanted:
            answer = self._answer()
            if not answer:
                yield None
                continue
            size, found = answer.get("size"), answer.get("generation")
            if type(size) is not int or type(found) is not int or size < 0 or not 0 <= found < _GENERATIONS:
                raise self._unusable()
            if generation not in (None, found):
                raise self._unusable()
            yield ObjectInfo(name=name, size=size, generation=found, crc32c="")

    def _answer(self) -> dict[str, Any]:
        """The next line. Raises NodeError: there is none, with the reason, or it is something else."""
        line = self._stream.line()
        if line is None:
            code, errors = self._stream.end()
            self._session.parse("send", errors, exit_code=code, errors=errors)
        answer = parse_object(line or b"")
        if answer is None:
            raise self._unusable()
        return answer

    def _receive(self, original: ObjectInfo, sent: ObjectInfo | None) -> bool:
        """Returns whether the object is here; else it was replaced, or is damaged."""
        if sent is None:
            self.whole = False
            return False
        if sent.size != original.size:
            raise self._unusable()
        try:
            self._bucket.receive(original, self._stream.take(original.size))
        except CorruptObjectError as error:
            # The others are not damaged.
            self.damaged.append(error)
            return False
        return True

    def _unusable(self) -> NodeError:
        return _unusable(self._session.node)


def originals(manifest: Manifest) -> list[ObjectInfo]:
    """What the manifest lists, the newest first: what a job writes again and again is soon replaced."""
    prefix = run_prefix(manifest.cluster, manifest.run)
    return [
        ObjectInfo(name=prefix + entry.object, size=entry.size, generation=entry.generation, crc32c=entry.crc32c)
        for entry in sorted(manifest.files, key=lambda entry: entry.modified, reverse=True)
    ]


def in_between(manifest: Manifest, before: Manifest | None, *, lacking: Collection[str]) -> Manifest:
    """What holds in the laptop's bucket until all objects have arrived: what is here is listed, the rest announced, as
    a node announces what it is about to upload.

    Args:
        before: what held there until now.
        lacking: the objects that are not here as the manifest has them.
    """
    prefix = run_prefix(manifest.cluster, manifest.run)
    listed = {entry.name: entry for entry in manifest.files}
    announced = {name: entry for name, entry in listed.items() if prefix + entry.object in lacking}
    here = {entry.name: entry for entry in (before.files if before is not None else ()) if entry.name in listed}
    here |= {name: entry for name, entry in listed.items() if name not in announced}
    return replace(
        manifest,
        complete=False,
        files=[entry for _, entry in sorted(here.items())],
        uploading=[replace(entry, generation=0) for entry in announced.values()],
    )


def _unusable(node: Node) -> NodeError:
    hint = f"hvdcloud ssh {node.index} opens a shell there"
    return NodeError(f"node {node.name} does not send what it was asked for", hint=hint)
