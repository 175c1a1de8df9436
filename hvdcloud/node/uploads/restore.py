"""The files of an earlier run to their places, before the ranks of this one start: its checkpoint directory and what
ranks wrote in the project's folder.

What was put there is written down beside the directory, so that the uploader does not send it back; the manifest names
the earlier run instead, and a later restore follows that chain.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud import units
from hvdcloud.checkpoints.fetch import fetch, local_paths, remove_partials
from hvdcloud.checkpoints.manifest import Entry, continued_runs, file_name, load_manifests, run_prefix
from hvdcloud.checkpoints.names import WORKSPACE, checkpoint_file
from hvdcloud.errors import CapacityError, CheckpointError
from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json
from hvdcloud.storage.base import Bucket, disk_error
from hvdcloud.storage.checksum import crc32c_of_file

WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One object that could become a file; an announced one may not be there."""

    prefix: str
    entry: Entry
    announced: bool


def baseline_path(directory: Path) -> Path:
    return directory.parent / f".{directory.name}.restored.json"


def read_baseline(directory: Path) -> dict[str, Any]:
    """What a restore put into a directory: the run it came `from`, and by the names of `files` their size and
    modification time in nanoseconds."""
    return read_json(baseline_path(directory)) or {"from": None, "files": {}}


def restore(bucket: Bucket, *, cluster: str, run_from: str, directory: Path) -> int:
    """Fill `directory` with what `run_from` had in its own, verified; returns how many files are there.

    Files of all nodes come together, and those that `run_from` itself had restored; of one name, the newest wins. A
    file that exists already is never replaced: either it is the same, or this run has written it.

    Raises:
        CheckpointError: no such run, or a checkpoint that can't be fetched or does not verify.
        CapacityError: not enough space.
    """
    return _restore(bucket, choices_of(bucket, cluster=cluster, run_from=run_from), directory, run_from, replace=False)


def gather(bucket: Bucket, *, cluster: str, run: str, directory: Path, only: str = "") -> int:
    """Bring this node to the newest that all nodes of this very run have in the bucket; `only`: below this folder.

    Unlike `restore`, whose errors it raises, it replaces a file that another node has written since. What is here must
    be in the bucket already. Returns how many of its files are there.
    """
    if not load_manifests(bucket, cluster=cluster, run=run):
        return 0
    earlier = read_baseline(directory)["from"]
    choices = choices_of(bucket, cluster=cluster, run_from=run)
    choices = {name: choices[name] for name in choices if name.startswith(only)}
    return _restore(bucket, choices, directory, earlier, replace=True)


def _restore(
    bucket: Bucket, choices: dict[str, list[Candidate]], directory: Path, run_from: str | None, *, replace: bool
) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        remove_partials(directory)
    except OSError as error:
        raise disk_error(error, path=directory, doing="preparing") from error
    places = _places(directory, choices)
    restored: dict[str, tuple[int, int]] = {}
    for name in list(choices):
        if places[name].is_file():
            size_and_crc = crc32c_of_file(places[name].resolve())
            if any(size_and_crc == (choice.entry.size, choice.entry.crc32c) for choice in choices[name]):
                restored[name] = _size_and_time(places[name])
            elif replace and choices[name][0].entry.modified > places[name].stat().st_mtime:
                continue
            del choices[name]
    needed = sum(choice[-1].entry.size for choice in choices.values())
    free = shutil.disk_usage(directory).free
    if needed > free:
        why = f"the checkpoints to restore need {units.size(needed)}, {directory} has {units.size(free)} left"
        hint = "make the cluster again with a larger gce.disk_gb, or free some space on this machine"
        raise CapacityError(why, hint=hint)
    failures = _fetch(bucket, choices, places=places, restored=restored)
    write_json(baseline_path(directory), {"from": run_from, "files": restored})
    if failures:
        first = min(failures)
        whose = run_from or "this run"
        raise CheckpointError(
            f"{len(failures)} checkpoint{'s' if len(failures) != 1 else ''} of {whose} could not be restored: "
            f"{first}: {failures[first]}",
            hint="check the bucket, or start without them: hvdcloud run --fresh",
            details="\n".join(f"{name}: {error}" for name, error in sorted(failures.items())[:50]),
        )
    return len(restored)


def _places(directory: Path, choices: dict[str, list[Candidate]]) -> dict[str, Path]:
    """Where the files belong; what the laptop has sent is not replaced, and no choice any more."""
    project = (read_json(paths.sync_file()) or {}).get("files", {})
    below = f"{WORKSPACE}/"
    for name in [name for name in choices if name.startswith(below) and name.removeprefix(below) in project]:
        del choices[name]
    outputs = {name: name.removeprefix(below) for name in choices if name.startswith(below)}
    checkpoints = {name: checkpoint_file(name) for name in choices if name not in outputs}
    places: dict[str, Path] = {}
    for root, files in ((paths.workspace(), outputs), (directory, checkpoints)):
        found = local_paths(root, list(files.values()))
        places |= {name: found[file] for name, file in files.items()}
    return places


def choices_of(bucket: Bucket, *, cluster: str, run_from: str) -> dict[str, list[Candidate]]:
    """For each file the objects to try, the last of which has to be there."""
    found: dict[str, list[Candidate]] = defaultdict(list)
    for run, manifests in continued_runs(bucket, cluster=cluster, run=run_from):
        if not manifests and run == run_from:
            hint = f"hvdcloud --name {cluster} pull shows which runs have"
            raise CheckpointError(f"run {run} of {cluster} has no checkpoints in {bucket.url}", hint=hint)
        prefix = run_prefix(cluster, run)
        for manifest in manifests:
            for announced, entries in ((False, manifest.files), (True, manifest.uploading)):
                for entry in entries:
                    found[file_name(entry.name)].append(Candidate(prefix=prefix, entry=entry, announced=announced))
    choices: dict[str, list[Candidate]] = {}
    for name, candidates in sorted(found.items()):
        # Newest first; of two that are equally new, the one of the later run.
        candidates.sort(key=lambda each: (each.entry.modified, each.announced), reverse=True)
        listed = next((each for each in candidates if not each.announced), candidates[-1])
        choices[name] = candidates[: candidates.index(listed) + 1]
    return choices


def _fetch(
    bucket: Bucket,
    choices: dict[str, list[Candidate]],
    *,
    places: dict[str, Path],
    restored: dict[str, tuple[int, int]],
) -> dict[str, Exception]:
    """Try the choices in turn; only a failure of one that has to be there is a failure."""
    failures: dict[str, Exception] = {}
    names = {path: name for name, path in places.items()}
    waiting = {name: list(candidates) for name, candidates in choices.items()}
    while waiting:
        turn = {name: candidates.pop(0) for name, candidates in waiting.items()}

        def done(_: Entry, path: Path, error: Exception | None, turn: dict[str, Candidate] = turn) -> None:
            name = names[path]
            if error is None:
                restored[name] = _size_and_time(path)
            elif not turn[name].announced:
                failures[name] = error

        for prefix in sorted({candidate.prefix for candidate in turn.values()}):
            wanted = [(each.entry, places[name]) for name, each in turn.items() if each.prefix == prefix]
            fetch(bucket, wanted, prefix=prefix, workers=WORKERS, on_done=done)
        waiting = {n: c for n, c in waiting.items() if c and n not in restored and n not in failures}
    return failures


def _size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
