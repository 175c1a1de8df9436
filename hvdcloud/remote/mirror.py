"""Checkpoints of nodes that have a bucket each, into the laptop's folder bucket; and what a run needs, to its nodes.

Objects come first, each verified by what its manifest promises, and the manifest that lists them last. The node is not
trusted: it may send only what its own manifest lists, and what describes its part of a run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hvdcloud.checkpoints.manifest import (
    FOLDER,
    LARGEST,
    RUN_ID,
    BadManifestError,
    continued_runs,
    list_runs,
    manifest_name,
    read_manifest,
    run_prefix,
    to_json,
)
from hvdcloud.checkpoints.mirror import LARGEST_DESCRIPTION, descriptions, in_between, originals, read_own_manifest
from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node.uploads.restore import choices_of
from hvdcloud.remote.code import exactly
from hvdcloud.remote.ssh import NODE_PROGRAM, SLOW_SECONDS, Session, Stream, request
from hvdcloud.storage.base import CorruptObjectError, disk_error, locked
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.replica import Original, Replicas

LOOKS = 5
"""How often a node is looked at again because it has replaced what was to be fetched."""
CALL_SECONDS = 600.0
"""How long a node may take to say what it lacks, or to verify what it was given."""
_POLL_SECONDS = 0.2
_GENERATIONS = 1 << 63


class Mirror:
    """The laptop's copies of what the nodes of one cluster incarnation have. Safe to use from several threads, for one
    node each."""

    def __init__(self, bucket: FolderBucket, *, cluster: str, cluster_id: str) -> None:
        self.bucket = bucket
        self.replicas = Replicas(bucket, key=cluster)
        self.cluster = cluster
        self.id = cluster_id

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

    def bring(self, session: Session) -> int:
        """Fetch what is new on a node; returns how many checkpoints came.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: what it has cannot be used; everything else of it is here.
            CapacityError: this disk is full.
        """
        node, files = session.node.index, 0
        for _ in range(LOOKS):
            with session.stream(f"{NODE_PROGRAM} send", within=SLOW_SECONDS) as stream:
                stream.write(request({"cluster": self.cluster, "id": self.id, "node": node, "have": self._have(node)}))
                arrival = _Arrival(self, session, stream)
                arrival.take_all()
            files += arrival.files
            if arrival.whole:
                break
        for error in arrival.damaged:
            raise error
        return files

    def _have(self, node: int) -> Mapping[str, tuple[int, int]]:
        """Size and generation of what is here of a node's manifests and descriptions, by name."""
        found = {}
        for run in list_runs(self.bucket, self.cluster, suffix=self.id):
            for name in (manifest_name(self.cluster, run, node), *descriptions(self.cluster, run, node)):
                if (present := self.bucket.present(name)) is not None:
                    found[name] = present
        return found

    def send(self, session: Session, run: str) -> int:
        """Give a node what it lacks to continue from a run; returns how many checkpoints it lacked.

        Raises:
            NodeError: it does not answer, or the connection was lost.
            CheckpointError: the run has no checkpoints here, or one of them cannot be read.
        """
        checkpoints, manifests = self._needed(run)
        lacking = _lacking(session, checkpoints)
        # The manifests last: they say that the rest has arrived.
        if wanted := [*lacking, *_lacking(session, manifests)]:
            session.call(
                "bucket",
                payload={"keep": True, "objects": [asdict(each) for each in wanted]},
                content=self._content(wanted),
                content_size=sum(each.size for each in wanted),
                timeout=CALL_SECONDS,
            )
        return len(lacking)

    def _content(self, wanted: Sequence[Original]) -> Iterator[bytes]:
        for original in wanted:
            file = Path(self.bucket.root, original.name)
            try:
                yield from exactly(file, size=original.size)
            except EOFError:
                hint = "hvdcloud run again"
                raise CheckpointError(f"{file} became shorter while it was sent", hint=hint) from None
            except OSError as error:
                raise disk_error(error, path=file, doing="reading") from error

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


class _Arrival:
    """What a node sends, run by run: its manifest, the checkpoints that this machine lacks of it, and what describes
    the run."""

    def __init__(self, mirror: Mirror, session: Session, stream: Stream) -> None:
        self.files = 0
        """Checkpoints that have come."""
        self.damaged: list[CheckpointError] = []
        """Why some of it could not be used."""
        self.whole = True
        """All of it is here, or damaged; else some was replaced meanwhile."""
        self._mirror, self._bucket, self._replicas = mirror, mirror.bucket, mirror.replicas
        self._session, self._stream = session, stream
        self._manifest: tuple[Original, bytes] | None = None
        """To be stored when all that it lists is here."""
        self._lacking: dict[str, Original] = {}
        """What is still to come of it, by name."""

    def take_all(self) -> None:
        """Take all, until the node's program ends.

        Raises:
            NodeError: the connection was lost, the program failed, or it sends something else.
            CapacityError, CheckpointError: this machine's bucket cannot be written, or a manifest is too large.
        """
        cluster, node = self._mirror.cluster, self._session.node.index
        while (line := self._stream.line()) is not None:
            run, original = self._announced(line)
            listed = self._lacking.pop(original.name, None)
            if listed is not None and (listed.size, listed.generation) == (original.size, original.generation):
                self.files += self._receive(listed)
                continue
            self._end_run()
            if original.name == manifest_name(cluster, run, node):
                self._begin_run(run, original)
            elif original.name in descriptions(cluster, run, node) and original.size <= LARGEST_DESCRIPTION:
                self._receive(original)
            else:
                raise self._unusable()
        self._end_run()
        code, errors = self._stream.end()
        if code:
            self._session.parse("send", errors, exit_code=code, errors=errors)

    def _announced(self, line: bytes) -> tuple[str, Original]:
        """The run and the object that follows, by a line of the node's."""
        head = parse_object(line) or {}
        name, numbers = head.get("name"), [head.get("size"), head.get("generation")]
        cluster, run, *_ = [*name.split("/"), ""] if isinstance(name, str) else ("", "")
        known = cluster == self._mirror.cluster and RUN_ID.fullmatch(run) and run.endswith(f"-{self._mirror.id}")
        if not known or not all(type(each) is int and 0 <= each < _GENERATIONS for each in numbers):
            raise self._unusable()
        return run, Original(name=str(name), size=int(numbers[0] or 0), generation=int(numbers[1] or 0))

    def _begin_run(self, run: str, original: Original) -> None:
        """Take a manifest, and ask for what is lacking of it."""
        cluster, node = self._mirror.cluster, self._session.node.index
        if original.size > LARGEST:
            raise BadManifestError(
                f"the manifest of node {node} for run {run} has {original.size} bytes",
                hint="hvdcloud down --force gives up what this node wrote",
            )
        data = b"".join(self._stream.take(original.size))
        try:
            manifest = read_own_manifest(data, cluster=cluster, run=run, node=node)
        except BadManifestError as error:
            self.damaged.append(error)
        else:
            self._manifest = original, data
            self._lacking = {each.name: each for each in originals(manifest) if self._replicas.lacks(each)}
        if self._lacking:
            # Until all of it is here: a kill at any moment leaves a bucket that can be verified.
            before = None
            with contextlib.suppress(BadManifestError):
                before = read_manifest(self._bucket, cluster=cluster, run=run, node=node)
            self._bucket.write(original.name, to_json(in_between(manifest, before, lacks=self._lacking.__contains__)))
        self._stream.write(request([[each.name, each.generation] for each in self._lacking.values()]))

    def _end_run(self) -> None:
        """Store the manifest, if all that it lists is here."""
        if self._lacking:
            self.whole = False
        elif self._manifest is not None:
            original, data = self._manifest
            self._replicas.receive(original, [data])
        self._manifest, self._lacking = None, {}

    def _receive(self, original: Original) -> bool:
        """Returns whether the object is here; else it is damaged, and its manifest is not stored."""
        try:
            self._replicas.receive(original, self._stream.take(original.size))
        except CorruptObjectError as error:
            # The others are not damaged.
            self.damaged.append(error)
            self._manifest = None
            return False
        return True

    def _unusable(self) -> NodeError:
        node = self._session.node
        why = f"node {node.name} does not send what it was asked for"
        return NodeError(why, hint=f"hvdcloud ssh {node.index} opens a shell there")


def _lacking(session: Session, wanted: Sequence[Original]) -> list[Original]:
    """The objects that a node does not have, or has only as they were earlier."""
    payload = {"objects": [asdict(each) for each in wanted]}
    lacks = session.call("bucket", payload=payload, timeout=CALL_SECONDS).get("lacks")
    if not isinstance(lacks, list) or not all(type(each) is int and 0 <= each < len(wanted) for each in lacks):
        raise NodeError(
            f"node {session.node.name} does not say which objects it lacks",
            hint=f"hvdcloud ssh {session.node.index} opens a shell there",
        )
    return [wanted[index] for index in sorted(set(lacks))]
