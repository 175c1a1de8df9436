"""What the fetcher does: list each data set, bring what is missing of it, and make it visible whole.

Beside the sets, in `.hvdcloud/NAME`: `tree`, which becomes the set when it has every file, and `index`, what the set
consists of that the ranks find. A file of the tree has its name once its bytes are verified and on the disk. What a
fetch has left in a tree, and a set that is to change, is read again first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdcloud import units
from hvdcloud.checkpoints.manifest import LONGEST_COMPONENT
from hvdcloud.checkpoints.names import clashes, refusals, sentences
from hvdcloud.errors import CapacityError, CheckpointError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.node import paths
from hvdcloud.node.bucket import open_bucket_here
from hvdcloud.node.files import is_disk_full, read_json, write_json
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.spec import DataRequest, DataSet
from hvdcloud.storage.base import (
    Bucket,
    CorruptObjectError,
    Download,
    ObjectInfo,
    ObjectMissingError,
    check_name,
    sync_folder,
)
from hvdcloud.storage.checksum import CRC32C, crc32c_of_file

WORKERS = 16
SPACE_HINT = (
    "on Compute Engine, set a larger gce.disk_gb in hvdcloud.yaml, then hvdcloud down and up; "
    "with provider local, free space where Docker keeps its containers"
)
_NAME_HINT = "rename or delete the object in the bucket"


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What there is to do for one set; `index` as it is written once the set is visible."""

    wanted: DataSet
    bucket: Bucket
    index: Mapping[str, Any]
    missing: Sequence[ObjectInfo]


def set_dir(name: str) -> Path:
    """Where the ranks find the set."""
    return paths.data_dir() / name


def work_dir(name: str) -> Path:
    """What the fetcher has of a set beside it."""
    return paths.data_dir() / ".hvdcloud" / name


class Fetch:
    """Fetches one node's data sets. `publish` is called with how far they are, whenever that has changed."""

    def __init__(self, request: DataRequest, publish: Callable[[NodeData], None]) -> None:
        self._request = request
        self._publish = publish
        self._state = NodeData(phase="fetching")

    def run(self) -> None:
        """Fetch every data set. An error ends that and is published; what has arrived stays."""
        os.umask(0o022)
        wanted: DataSet | None = None
        try:
            paths.data_dir().mkdir(parents=True, exist_ok=True)
            plans = []
            for wanted in self._request.sets:
                if wanted.mounted and not set_dir(wanted.name).is_dir():
                    hint = "hvdcloud down and hvdcloud up make the nodes with it"
                    raise NodeError(f"it is not mounted at {set_dir(wanted.name)}", hint=hint)
                if not wanted.mounted and (plan := self._plan(wanted)) is not None:
                    plans.append(plan)
            wanted = None
            _check_space(plans)
            for plan in plans:
                wanted = plan.wanted
                self._bring(plan)
        except Exception as error:  # noqa: BLE001 - shown to the user
            why = _in_words(error, wanted)
            text = f"data set {wanted.name}: {why.message}" if wanted is not None else why.message
            self._update(phase="failed", error=text, hint=why.hint, exit_code=int(why.code))
        else:
            self._update(phase="ready")

    def _update(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        # A full disk must not end the fetch: it has its own error for that.
        with contextlib.suppress(OSError):
            self._publish(self._state)

    def _has(self, *, files: int, size: int) -> None:
        """Count what is there as it should be."""
        self._update(files=self._state.files + files, bytes=self._state.bytes + size)

    def _plan(self, wanted: DataSet) -> _Plan | None:
        """The plan; None: the set is there as it should be."""
        work, target = work_dir(wanted.name), set_dir(wanted.name)
        self._update()
        bucket = open_bucket_here(wanted.source, endpoint=self._request.endpoint)
        objects = listed(bucket, wanted, index=self._request.index, count=self._request.count)
        size = sum(each.size for each in objects)
        self._update(total_bytes=self._state.total_bytes + size)
        promised = {each.name: [each.size, each.crc32c, each.generation] for each in objects}
        index = {"source": wanted.source, "endpoint": self._request.endpoint, "objects": promised}
        if read_json(work / "index") == index and target.is_dir():
            self._has(files=len(objects), size=size)
            return None
        check_names([each.name for each in objects])
        work.mkdir(parents=True, exist_ok=True)
        work.parent.chmod(0o700)
        # Without an index, a set is not taken for another one: whatever ends this here, it is read again.
        (work / "index").unlink(missing_ok=True)
        if target.exists():
            shutil.rmtree(work / "tree", ignore_errors=True)
            target.rename(work / "tree")
        missing = _missing(work / "tree", objects)
        self._has(files=len(objects) - len(missing), size=size - sum(each.size for each in missing))
        return _Plan(wanted=wanted, bucket=bucket, index=index, missing=missing)

    def _bring(self, plan: _Plan) -> None:
        name = plan.wanted.name
        tree = work_dir(name) / "tree"

        def done(item: Download, error: Exception | None) -> None:
            if error is not None:
                # No further object is begun.
                raise error
            self._has(files=1, size=item.size)

        items = [
            Download(
                name=each.name, target=tree / each.name, size=each.size, crc32c=each.crc32c, generation=each.generation
            )
            for each in plan.missing
        ]
        plan.bucket.download_many(items, workers=WORKERS, on_done=done)
        for folder, _, _ in os.walk(tree):
            sync_folder(Path(folder))
        tree.rename(set_dir(name))
        sync_folder(paths.data_dir())
        write_json(work_dir(name) / "index", plan.index)


def listed(bucket: Bucket, wanted: DataSet, *, index: int, count: int) -> Sequence[ObjectInfo]:
    """The objects of a set, sorted by name, or node `index`'s share of them.

    Raises:
        UsageError: there is no bucket, nothing in it, or less than one file for each node.
        HvdcloudError: as the bucket says.
    """
    # What ends in a slash stands for a folder in consoles.
    every = [each for each in bucket.list("") if each.name and not each.name.endswith("/")]
    if not every:
        hint = f"gcloud storage ls {wanted.source} shows whether the prefix is spelled so"
        raise UsageError(f"{wanted.source} has no objects", hint=hint)
    if damaged := next((each.name for each in every if not CRC32C.fullmatch(each.crc32c)), None):
        raise CheckpointError(f"the list of {bucket.url} has no CRC32C of {damaged}", hint="hvdcloud run again")
    if wanted.per_node != "shard":
        return every
    if not (share := every[index::count]):
        why = f"it has {len(every)} files for {count} nodes, of which each gets its share"
        raise UsageError(why, hint=f"set per_node: all below data.{wanted.name} in hvdcloud.yaml, or use fewer nodes")
    return share


def check_names(names: Sequence[str]) -> None:
    """Raise unless each of these can be a file beside all others.

    Raises:
        CheckpointError: a name leaves its folder, or holds what no name may.
        UsageError: a name would make a repository, or cannot be beside another one.
    """
    for name in names:
        if max(len(part.encode(errors="replace")) for part in check_name(name)) > LONGEST_COMPONENT:
            why = f"{name!r} has a part of more than {LONGEST_COMPONENT} bytes, which no disk takes"
            raise UsageError(why, hint=_NAME_HINT)
    if len({*names}) < len(names):
        raise UsageError("its list has a name twice", hint="hvdcloud run again")
    if refused := refusals(names):
        raise UsageError(sentences(refused, "no file of a data set")[0], hint=_NAME_HINT)
    for name, why in clashes(names, ignores_case=False).items():
        raise UsageError(f"{name} cannot be a file of a data set: {why}", hint=_NAME_HINT)


def _missing(tree: Path, objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """The objects that a tree does not have as they should be; what it has besides them is deleted."""
    tree.mkdir(exist_ok=True)
    names = {each.name for each in objects}
    for folder, folders, files in os.walk(tree, topdown=False):
        for path in (Path(folder, name) for name in (*files, *folders)):
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.rmdir()
            elif str(path.relative_to(tree)) not in names:
                path.unlink()
    missing = []
    for each in objects:
        path = tree / each.name
        if not path.is_file() or crc32c_of_file(path) != (each.size, each.crc32c):
            path.unlink(missing_ok=True)
            missing.append(each)
    return missing


def _check_space(plans: Sequence[_Plan]) -> None:
    """Raise CapacityError: the disk has no room for all of the sets."""
    needed, free = sum(each.size for plan in plans for each in plan.missing), shutil.disk_usage(paths.data_dir()).free
    if needed > free:
        names = " and ".join(plan.wanted.name for plan in plans)
        why = f"data set {names}: {units.size(needed)} more are needed, and the disk has {units.size(free)} left"
        raise CapacityError(why, hint=SPACE_HINT)


def _in_words(error: Exception, wanted: DataSet | None) -> HvdcloudError:
    """What an error means for a data set."""
    if isinstance(error, CapacityError) or (isinstance(error, OSError) and is_disk_full(error)):
        return CapacityError(str(error), hint=SPACE_HINT)
    if isinstance(error, CredentialsError) and wanted is not None:
        hint = f'write data = ["{wanted.source}"] into hvdcloud.tfvars, then hvdcloud setup'
        return CredentialsError(error.message, hint=hint)
    if isinstance(error, ObjectMissingError):
        why = f"an object was deleted or replaced while the data set was fetched: {error.message}"
        return ObjectMissingError(why, hint="hvdcloud run lists it again, once nothing writes there")
    if isinstance(error, CorruptObjectError):
        return CorruptObjectError(error.message, hint="upload the object again")
    if isinstance(error, HvdcloudError):
        return error
    return NodeError(str(error) or type(error).__name__, hint="hvdcloud run again")
