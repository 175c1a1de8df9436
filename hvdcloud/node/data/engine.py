"""What the fetcher does: each data set, from the listing to the rename."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hvdcloud.errors import CapacityError, CheckpointError, HvdcloudError, UsageError
from hvdcloud.node import paths
from hvdcloud.node.data.sets import FAILED, FETCHING, LISTING, READY, DataRequest, DataSet, DataState
from hvdcloud.storage.base import Bucket, Download, disk_error, free_bytes
from hvdcloud.storage.open import open_bucket

SPACE_HINT = "a larger gce.disk_gb, or gce.local_ssd, and then hvdcloud down and up"


def fetch_all(request: DataRequest, *, publish: Callable[[tuple[DataState, ...]], None]) -> None:
    """Bring each data set; what fails of one stops no other."""
    states = {each.name: DataState(name=each.name) for each in request.sets}

    def show(state: DataState) -> None:
        states[state.name] = state
        publish(tuple(states.values()))

    for each in request.sets:
        began = time.monotonic()
        try:
            if each.mounted:
                show(DataState(name=each.name, phase=READY))
                continue
            show(DataState(name=each.name, phase=LISTING))
            done = _fetch(each, request, show)
        except (OSError, HvdcloudError) as error:
            why = disk_error(error, path=paths.data_dir(), doing="writing") if isinstance(error, OSError) else error
            done = replace(states[each.name], phase=FAILED, error=why.message, hint=why.hint, exit_code=int(why.code))
        show(replace(done, seconds=time.monotonic() - began))


def _fetch(wanted: DataSet, request: DataRequest, show: Callable[[DataState], None]) -> DataState:
    file = paths.data_credentials_file()
    bucket: Bucket = open_bucket(
        wanted.source, endpoint=request.endpoint, credentials_file=file if file.exists() else None
    )
    found = [each for each in bucket.list("") if not each.name.endswith("/")]
    if not found:
        raise UsageError(f"{wanted.source} has no objects", hint=f"gcloud storage ls {wanted.source}")
    if wanted.per_node == "shard":
        found = found[request.index :: request.count]
    total = sum(each.size for each in found)
    tree = paths.data_dir() / ".hvdcloud" / wanted.name / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    if total > free_bytes(tree):
        raise CapacityError(f"data set {wanted.name} needs {total / 1e9:.2f} GB of disk", hint=SPACE_HINT)
    state = DataState(name=wanted.name, phase=FETCHING, total_bytes=total, total_files=len(found))
    failures: list[Exception] = []

    def done(item: Download, error: Exception | None) -> None:
        nonlocal state
        if error is not None:
            failures.append(error)
            return
        item.target.chmod(0o444)
        state = replace(state, bytes=state.bytes + item.size, files=state.files + 1)
        show(state)

    bucket.download_many(
        [
            Download(name=o.name, target=tree / o.name, size=o.size, crc32c=o.crc32c or "", generation=o.generation)
            for o in found
        ],
        workers=8,
        on_done=done,
    )
    if failures:
        raise failures[0] if isinstance(failures[0], HvdcloudError) else CheckpointError(str(failures[0]), hint="again")
    target = paths.data_dir() / wanted.name
    old = tree.with_name("old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    tree.rename(target)
    _sync(target)
    shutil.rmtree(old, ignore_errors=True)
    return replace(state, phase=READY)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
