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
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import Bucket, ObjectMissingError, check_name

VERSION = 1
FOLDER = ".hvdcloud"

_CRC32C = re.compile(r"[A-Za-z0-9+/]{6}==")
_MANIFEST_NAME = re.compile(r"manifest-(0|[1-9][0-9]{0,5})\.json")
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
        entries = [{key: getattr(entry, key) for key in _ENTRY_KEYS} for entry in value[key]]
        value[key] = [{k: v for k, v in entry.items() if (k, v) != ("version", None)} for entry in entries]
    if not manifest.uploading:
        del value["uploading"]
    if manifest.resumed is None:
        del value["resumed"]
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(data: bytes, *, source: str) -> Manifest:
    """Read a manifest, trusting nothing in it: anyone with write access to the bucket could have written it.

    Args:
        source: its address, for the error message.

    Raises:
        CheckpointError: not a manifest, of a later version, or with a file name that would leave the target folder.
    """

    def refuse(why: str) -> NoReturn:
        raise CheckpointError(
            f"the manifest {source} is not valid: {why}",
            hint="restore this object from a backup, or delete it to give this run's checkpoints up",
        )

    def field(value: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
        if key not in value:
            refuse(f"{where} has no {key!r}")
        found = value[key]
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            refuse(f"{key!r} of {where} is {found!r}")
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
                modified=float(field(raw, "modified", (int, float), where)),
                version=field(raw, "version", str, where) if "version" in raw else None,
            )
            if entry.version is not None and not _VERSION.fullmatch(entry.version):
                refuse(f"'version' of {where} is {entry.version!r}")
            try:
                parts = check_name(entry.name)
            except CheckpointError as error:
                refuse(error.message)
            if parts[0] == FOLDER:
                refuse(f"{where} is not a checkpoint but {entry.name!r}")
            if entry.size < 0 or entry.generation < 0 or not 0 <= entry.modified < 1e12:
                refuse(f"{where} has a number out of range")
            if not _CRC32C.fullmatch(entry.crc32c):
                refuse(f"{entry.crc32c!r} is not a CRC32C")
            if entry.name in names:
                refuse(f"{entry.name!r} is in it twice")
            names.add(entry.name)
            found.append(entry)
        return found

    try:
        value = json.loads(data)
    except ValueError:
        refuse("it is not JSON")
    except RecursionError:
        refuse("it is nested too deeply")
    if not isinstance(value, dict):
        refuse("it is not a JSON object")
    if field(value, "version", int, "it") != VERSION:
        refuse(f"it has version {value['version']}; this hvdcloud reads version {VERSION}")
    if unknown := set(value).difference(_MANIFEST_KEYS, ["version"]):
        refuse(f"unknown key {min(unknown)!r}")
    resumed = field(value, "resumed", str, "it") if "resumed" in value else None
    if resumed is not None and not _NAME.fullmatch(resumed):
        refuse(f"'resumed' is {resumed!r}")
    return Manifest(
        cluster=field(value, "cluster", str, "it"),
        run=field(value, "run", str, "it"),
        node=field(value, "node", int, "it"),
        complete=field(value, "complete", bool, "it"),
        files=entries("files"),
        uploading=entries("uploading") if "uploading" in value else (),
        resumed=resumed,
    )


def read_manifest(bucket: Bucket, *, cluster: str, run: str, node: int) -> Manifest | None:
    """One node's manifest; None if it has not written one."""
    name = manifest_name(cluster, run, node)
    try:
        manifest = from_json(bucket.read(name), source=f"{bucket.url}/{name}")
    except ObjectMissingError:
        return None
    if (manifest.cluster, manifest.run, manifest.node) != (cluster, run, node):
        raise CheckpointError(
            f"the manifest {bucket.url}/{name} belongs to node {manifest.node} of {manifest.cluster}/{manifest.run}",
            hint="restore this object from a backup",
        )
    # Each node speaks for its own files only.
    for entry in (*manifest.files, *manifest.uploading):
        if entry.name != object_name(file_name(entry.name), node=node):
            raise CheckpointError(
                f"the manifest {bucket.url}/{name} lists {entry.name!r}, which is not a file of node {node}",
                hint="restore this object from a backup",
            )
    return manifest


def load_manifests(bucket: Bucket, *, cluster: str, run: str) -> list[Manifest]:
    """Every node's manifest of a run, by node number; empty if there is none.

    Raises CheckpointError: one of them is not valid.
    """
    folder = f"{run_prefix(cluster, run)}{FOLDER}/"
    names = (_MANIFEST_NAME.fullmatch(info.name.removeprefix(folder)) for info in bucket.list(f"{folder}manifest-"))
    nodes = sorted(int(match[1]) for match in names if match)
    found = (read_manifest(bucket, cluster=cluster, run=run, node=node) for node in nodes)
    return [manifest for manifest in found if manifest is not None]


def list_runs(bucket: Bucket, cluster: str, *, suffix: str | None = None) -> list[str]:
    """Runs of a cluster that have something in the bucket, oldest first.

    Args:
        suffix: only those of the cluster incarnation with this id (the run id's last six characters).
    """
    runs = [name.split("/")[-2] for name in bucket.prefixes(f"{cluster}/")]
    return [run for run in runs if _NAME.fullmatch(run) and (suffix is None or run.endswith(f"-{suffix}"))]
