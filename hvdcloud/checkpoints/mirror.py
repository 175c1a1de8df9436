"""What of a node's own bucket belongs into the laptop's, and what its manifest says there while objects arrive. Pure.

A node speaks for its own files only: those that its manifest lists, and what describes its part of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hvdcloud.checkpoints.manifest import (
    Entry,
    Manifest,
    check_owner,
    events_name,
    from_json,
    log_name,
    run_prefix,
    samples_name,
    state_name,
)
from hvdcloud.storage.replica import Original

LARGEST_DESCRIPTION = 1 << 30
"""Bytes of a log or of samples; a larger one stays on its node."""


def read_own_manifest(data: bytes, *, cluster: str, run: str, node: int) -> Manifest:
    """A node's manifest as the node itself sent it. Raises BadManifestError: it cannot be used."""
    source = f"of node {node} for run {run}"
    return check_owner(from_json(data, source=source), cluster, run, node, source=source)


def descriptions(cluster: str, run: str, node: int) -> Sequence[str]:
    """The names of what a node may write about a run beside its manifest; the state, which says that the log is there,
    comes last."""
    names = [samples_name(cluster, run, node)]
    return names if node else [*names, log_name(cluster, run), events_name(cluster, run), state_name(cluster, run)]


def originals(manifest: Manifest) -> list[Original]:
    """What the manifest lists, the newest first: what a job writes again and again is soon replaced."""
    prefix = run_prefix(manifest.cluster, manifest.run)
    return [
        Original(
            name=prefix + entry.object,
            size=entry.size,
            generation=entry.generation,
            crc32c=entry.crc32c,
        )
        for entry in sorted(manifest.files, key=lambda entry: entry.modified, reverse=True)
    ]


def in_between(manifest: Manifest, before: Manifest | None, *, lacks: Callable[[str], bool]) -> Manifest:
    """What holds in the laptop's bucket until all objects have arrived: what is here is listed, the rest announced, as
    a node announces what it is about to upload. A kill at any moment leaves a bucket that can be verified.

    Args:
        before: what held there until now.
        lacks: whether an object, by its name, is not here as the manifest has it.
    """
    prefix = run_prefix(manifest.cluster, manifest.run)
    here: dict[str, Entry] = {entry.name: entry for entry in (before.files if before is not None else ())}
    announced: list[Entry] = []
    for entry in manifest.files:
        if lacks(prefix + entry.object):
            announced.append(replace(entry, generation=0))
        else:
            here[entry.name] = entry
    listed = {entry.name for entry in manifest.files}
    files = [entry for name, entry in sorted(here.items()) if name in listed]
    return replace(manifest, complete=False, files=files, uploading=announced)
