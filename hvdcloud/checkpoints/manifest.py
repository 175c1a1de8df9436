"""What a node says it has uploaded: `CLUSTER/RUN/.hvdcloud/manifest-K.json`, written by that node's agent only.

Below `CLUSTER/RUN/` the head's files have their own path and those of node K are in `@node-K/`, so that two nodes that
write one name never overwrite each other.

In Cloud Storage nodes may add checkpoints and neither replace nor delete one, so what a file is rewritten with becomes
an object of its own, `NAME@VERSION`, and the manifest says which one is the file. What is in `.hvdcloud/` they rewrite.

A manifest is written before an upload too: `uploading` announces what is about to be replaced, so that a node that dies
between the object and the manifest leaves nothing in the bucket that can't be verified.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import Bucket, BucketUnreachableError, ObjectMissingError, TooLargeError, check_name
from hvdcloud.storage.checksum import CRC32C

VERSION = 1
FOLDER = ".hvdcloud"
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
LARGEST = 64 << 20
"""Bytes of a manifest: room for a quarter of a million files. A larger one is neither written nor read."""
LONGEST_COMPONENT = 255
"""Bytes of a name between two slashes; no usual file system takes more."""
LAST_SECOND = 253_370_764_800.0
"""The beginning of the year 9999, which is the last that Python's dates know."""

# A cluster has at most 1,000 nodes.
_MANIFEST_NAME = re.compile(r"manifest-(0|[1-9][0-9]{0,2})\.json")
# Sizes and generations of Cloud Storage have 63 bits.
_LARGEST_NUMBER = 2**63 - 1
_SHOWN = 80
_LONGEST_NAME = 1024
_HINT = "restore this object from a backup, or delete it to give up what this node wrote in this run"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{8})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file."""

    name: str  # The object's path relative to `CLUSTER/RUN/`.
    size: int  # Bytes.
    crc32c: str  # Base64 as Cloud Storage writes it.
    generation: int  # Of the object; 0 where it is only announced.
    modified: float  # The file's modification time on its node, seconds since the epoch.
    version: str | None = None  # Of the object, where others of this name were there before and stay.

    @property
    def object(self) -> str:
        """The object's path relative to `CLUSTER/RUN/`."""
        return self.name if self.version is None else f"{self.name}@{self.version}"


class BadManifestError(CheckpointError):
    """A manifest that cannot be used; it says nothing about the other nodes' files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadManifest:
    """One node's manifest that cannot be used."""

    node: int
    name: str  # Of the object.
    error: CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One node's manifest."""

    cluster: str
    run: str
    node: int  # Number of the node; 0 is the head.
    complete: bool  # The run has ended on this node and all its files are in the bucket.
    files: Sequence[Entry]  # What is in the bucket, sorted by name.
    uploading: Sequence[Entry] = ()  # Announced, perhaps there already, perhaps not; generation 0.
    resumed: str | None = None  # The run whose checkpoints this one started from; its files are not uploaded again.


# The names and the order of the keys in JSON, which begins with "version".
_ENTRY_KEYS = tuple(field.name for field in fields(Entry))
_MANIFEST_KEYS = tuple(field.name for field in fields(Manifest))


def run_prefix(cluster: str, run: str) -> str:
    """Where a run's objects are.

    Raises CheckpointError: a name that no cluster or run can have; it would become part of paths.
    """
    for name in (cluster, run):
        if not _NAME.fullmatch(name):
            raise CheckpointError(f"{name!r} is not the name of a cluster or run", hint="hvdcloud list")
    return f"{cluster}/{run}/"


def manifest_name(cluster: str, run: str, node: int) -> str:
    return f"{run_prefix(cluster, run)}{FOLDER}/manifest-{node}.json"


def log_name(cluster: str, run: str) -> str:
    """Where a run's log outlives its nodes; the head puts it there when the run has ended."""
    return f"{run_prefix(cluster, run)}{FOLDER}/log"


def state_name(cluster: str, run: str) -> str:
    """Where the last state of a run is, as the head knew it; JSON."""
    return f"{run_prefix(cluster, run)}{FOLDER}/state.json"


def samples_name(cluster: str, run: str, node: int) -> str:
    """Where a node's samples are: what its processors and GPUs did, a JSON object per line."""
    return f"{run_prefix(cluster, run)}{FOLDER}/samples-{node}.jsonl"


def events_name(cluster: str, run: str) -> str:
    """Where the events of a run are, a JSON object per line."""
    return f"{run_prefix(cluster, run)}{FOLDER}/events.jsonl"


def stacks_name(cluster: str, run: str) -> str:
    """Where the stacks of a run's ranks are, if it was stuck; JSON."""
    return f"{run_prefix(cluster, run)}{FOLDER}/stacks.json"


def descriptions(cluster: str, run: str, node: int) -> Sequence[str]:
    """The names of what a node may write about a run beside its manifest; the state, which says that the log is there,
    comes last."""
    names = [samples_name(cluster, run, node)]
    return names if node else [*names, log_name(cluster, run), events_name(cluster, run), state_name(cluster, run)]


def object_name(file: str, *, node: int) -> str:
    """Where a node's file goes, relative to `CLUSTER/RUN/`."""
    if node == 0 and not file.startswith(("@node-", f"{FOLDER}/")):
        return file
    return f"@node-{node}/{file}"


def file_name(name: str) -> str:
    """The path that an object's file had in its node's checkpoint directory."""
    return name.partition("/")[2] if re.match(r"@node-[0-9]+/", name) else name


def to_json(manifest: Manifest) -> bytes:
    value = {"version": VERSION, **{key: getattr(manifest, key) for key in _MANIFEST_KEYS}}
    for key in ("files", "uploading"):
        value[key] = [_plain_entry(entry) for entry in value[key]]
    if not manifest.uploading:
        del value["uploading"]
    if manifest.resumed is None:
        del value["resumed"]
    return json.dumps(value, separators=(",", ":")).encode()


def _plain_entry(entry: Entry) -> dict[str, Any]:
    value = {key: getattr(entry, key) for key in _ENTRY_KEYS}
    return {key: each for key, each in value.items() if each is not None}


def usual_time(seconds: float) -> float:
    """A modification time that a manifest can hold; a file may have one of before 1970 or of the year 10000."""
    return min(max(0.0, seconds), LAST_SECOND)


def from_json(data: bytes, *, source: str) -> Manifest:
    """Read a manifest, trusting nothing in it: anyone with write access to the bucket could have written it.

    Args:
        source: its address, for the error message.

    Raises:
        BadManifestError: not a manifest, of a later version, with a file name that would leave the target folder, or
            with a number that no file has.
    """

    def refuse(why: str) -> NoReturn:
        raise BadManifestError(f"the manifest {source} is not valid: {why}", hint=_HINT)

    def field(value: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
        if key not in value:
            refuse(f"{where} has no {key!r}")
        found = value[key]
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            refuse(f"{key!r} of {where} is {_short(found)}")
        return found

    def entries(key: str) -> list[Entry]:
        found: list[Entry] = []
        names: set[str] = set()
        for number, raw in enumerate(field(value, key, list, "it")):
            where = f"{key}[{number}]"
            if not isinstance(raw, dict) or set(raw).difference(_ENTRY_KEYS):
                refuse(f"{where} is not a file")
            entry = Entry(
                name=field(raw, "name", str, where),
                size=field(raw, "size", int, where),
                crc32c=field(raw, "crc32c", str, where),
                generation=field(raw, "generation", int, where),
                modified=field(raw, "modified", (int, float), where),
                version=field(raw, "version", str, where) if "version" in raw else None,
            )
            if entry.version is not None and not _VERSION.fullmatch(entry.version):
                refuse(f"'version' of {where} is {_short(entry.version)}")
            if len(entry.name) > _LONGEST_NAME:
                refuse(f"the name of {where} has {len(entry.name)} characters")
            try:
                parts = check_name(entry.name)
            except CheckpointError as error:
                refuse(error.message)
            if parts[0] == FOLDER:
                refuse(f"{where} is not a checkpoint but {_short(entry.name)}")
            if max(len(part.encode()) for part in parts) > LONGEST_COMPONENT:
                refuse(f"{_short(entry.name)} has a part of more than {LONGEST_COMPONENT} bytes")
            # Compared before it becomes a float, which most integers are too large for.
            if not 0 <= entry.modified <= LAST_SECOND:
                refuse(f"{where} has a time out of range")
            if not (0 <= entry.size <= _LARGEST_NUMBER and 0 <= entry.generation <= _LARGEST_NUMBER):
                refuse(f"{where} has a number out of range")
            if not CRC32C.fullmatch(entry.crc32c):
                refuse(f"{_short(entry.crc32c)} is not a CRC32C")
            if entry.name in names:
                refuse(f"{_short(entry.name)} is in it twice")
            names.add(entry.name)
            found.append(replace(entry, modified=float(entry.modified)))
        return found

    if len(data) > LARGEST:
        refuse(f"it has {len(data)} bytes; the largest that is read has {LARGEST}")
    try:
        value = json.loads(data)
    except ValueError:
        refuse("it is not JSON")
    except RecursionError:
        refuse("it is nested too deeply")
    if not isinstance(value, dict):
        refuse("it is not a JSON object")
    if field(value, "version", int, "it") != VERSION:
        refuse(f"it has version {_short(value['version'])}; this hvdcloud reads version {VERSION}")
    if unknown := set(value).difference(_MANIFEST_KEYS, ["version"]):
        refuse(f"unknown key {_short(min(unknown))}")
    resumed = field(value, "resumed", str, "it") if "resumed" in value else None
    if resumed is not None and not _NAME.fullmatch(resumed):
        refuse(f"'resumed' is {_short(resumed)}")
    return Manifest(
        cluster=field(value, "cluster", str, "it"),
        run=field(value, "run", str, "it"),
        node=field(value, "node", int, "it"),
        complete=field(value, "complete", bool, "it"),
        files=entries("files"),
        uploading=entries("uploading") if "uploading" in value else (),
        resumed=resumed,
    )


def _short(value: object) -> str:
    """A value of a manifest as a message quotes it: nobody knows how long it is."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # Nested too deeply, or an integer of more digits than Python writes.
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def read_manifest(bucket: Bucket, *, cluster: str, run: str, node: int) -> Manifest | None:
    """One node's manifest; None if it has not written one.

    Raises:
        BadManifestError: it is not valid, or not that of this node.
        CheckpointError: the bucket cannot be read.
    """
    name = manifest_name(cluster, run, node)
    source = f"{bucket.url}/{name}"
    try:
        return check_owner(from_json(bucket.read(name, most=LARGEST), source=source), cluster, run, node, source=source)
    except ObjectMissingError:
        return None
    except TooLargeError as error:
        raise BadManifestError(f"the manifest {source} is not valid: {error.message}", hint=_HINT) from error


def check_owner(manifest: Manifest, cluster: str, run: str, node: int, *, source: str) -> Manifest:
    """The manifest itself, if it is this node's and lists files of this node only.

    Raises BadManifestError: it is another's, or lists another's file.
    """
    if (manifest.cluster, manifest.run, manifest.node) != (cluster, run, node):
        whose = f"node {_short(manifest.node)} of {_short(manifest.cluster)[1:-1]}/{_short(manifest.run)[1:-1]}"
        raise BadManifestError(f"the manifest {source} belongs to {whose}", hint=_HINT)
    # Each node speaks for its own files only.
    for entry in (*manifest.files, *manifest.uploading):
        if entry.name != object_name(file_name(entry.name), node=node):
            raise BadManifestError(
                f"the manifest {source} lists {_short(entry.name)}, which is not a file of node {node}",
                hint=_HINT,
            )
    return manifest


def load_each(bucket: Bucket, *, cluster: str, run: str) -> tuple[list[Manifest], list[BadManifest]]:
    """Every node's manifest of a run by node number, and those that cannot be used: each costs its own node's files.

    Raises:
        BucketUnreachableError: the bucket does not answer, which says nothing about its manifests.
        HvdcloudError: the bucket cannot be listed.
    """
    folder = f"{run_prefix(cluster, run)}{FOLDER}/"
    found: dict[int, str] = {}
    for info in bucket.list(f"{folder}manifest-"):
        if match := _MANIFEST_NAME.fullmatch(info.name.removeprefix(folder)):
            found[int(match[1])] = info.name
    good: list[Manifest] = []
    bad: list[BadManifest] = []
    for node, name in sorted(found.items()):
        try:
            manifest = read_manifest(bucket, cluster=cluster, run=run, node=node)
        except BucketUnreachableError:
            raise
        except CheckpointError as error:
            bad.append(BadManifest(node=node, name=name, error=error))
        else:
            good += [manifest] if manifest is not None else []
    return good, bad


def load_manifests(bucket: Bucket, *, cluster: str, run: str) -> list[Manifest]:
    """Every node's manifest of a run, by node number; empty if there is none.

    Raises CheckpointError: one of them is not valid.
    """
    good, bad = load_each(bucket, cluster=cluster, run=run)
    if bad:
        raise bad[0].error
    return good


def continued_runs(bucket: Bucket, *, cluster: str, run: str) -> Iterator[tuple[str, list[Manifest]]]:
    """A run with its manifests, then each run that it continued from; raises as `load_manifests`."""
    seen: set[str] = set()
    now: str | None = run
    while now is not None and now not in seen:
        seen.add(now)
        manifests = load_manifests(bucket, cluster=cluster, run=now)
        yield now, manifests
        now = next((manifest.resumed for manifest in manifests if manifest.resumed), None)


def list_runs(bucket: Bucket, cluster: str, *, suffix: str | None = None) -> list[str]:
    """Runs of a cluster that have something in the bucket, oldest first; none for a name that no cluster can have.

    Other folders are left out: a run becomes a folder of its name on this disk.

    Args:
        suffix: only those of the cluster incarnation with this id (the run id's last six characters).
    """
    names = bucket.prefixes(f"{cluster}/") if _NAME.fullmatch(cluster) else ()
    runs = (name.split("/")[-2] for name in names)
    return [run for run in runs if RUN_ID.fullmatch(run) and (suffix is None or run.endswith(f"-{suffix}"))]
