"""What the fetcher does: list each data set, bring what is missing of it, and make it visible whole.

Beside the sets, in `.hvdcloud/NAME`: `tree`, which becomes the set, and `index`, what the set consists of that the
ranks find. A file of the tree has its name once its bytes are verified and on the disk. A tree that was left is read
again: the objects may have changed since.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hvdcloud.checkpoints.manifest import LONGEST_COMPONENT
from hvdcloud.checkpoints.names import clashes, refusals, sentences
from hvdcloud.errors import CapacityError, CheckpointError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.node import paths
from hvdcloud.node.bucket import open_bucket_here
from hvdcloud.node.data.sets import FAILED, FETCHING, LISTING, READY, VERIFYING, DataState
from hvdcloud.node.files import is_disk_full, read_json, write_json
from hvdcloud.runs.spec import DataRequest, DataSet
from hvdcloud.storage.base import (
    Bucket,
    CorruptObjectError,
    Download,
    ObjectInfo,
    ObjectMissingError,
    check_name,
    ignores_case,
    sync_folder,
)
from hvdcloud.storage.checksum import CRC32C, crc32c_of_file

WORKERS = 16
FILE_MODE, FOLDER_MODE = 0o444, 0o555
SPACE_HINT = (
    "on Compute Engine, set a larger gce.disk_gb in hvdcloud.yaml, then hvdcloud down and up; "
    "with provider local, free space where Docker keeps its containers"
)
_NAME_HINT = "rename or delete the object in the bucket"
_BLOCK = 4096


class Board:
    """The states of all sets. `publish` takes them whenever one has changed."""

    def __init__(self, names: Iterable[str], publish: Callable[[tuple[DataState, ...]], None]) -> None:
        self._states = {name: DataState(name=name) for name in names}
        self._began: dict[str, float] = {}
        self._publish = publish

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a set's state; its clock starts with the first change."""
        seconds = time.monotonic() - self._began.setdefault(name, time.monotonic())
        self._states[name] = replace(self._states[name], **changes, seconds=round(seconds, 3))
        # A full disk must not end the fetch: it has its own error for that.
        with contextlib.suppress(OSError):
            self._publish(tuple(self._states.values()))


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What there is to do for one set; `index` as it is written once the set is visible."""

    name: str
    bucket: Bucket
    index: Mapping[str, Any]
    missing: list[ObjectInfo] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    @property
    def needed(self) -> int:
        """Bytes of the disk."""
        return sum(-(-each.size // _BLOCK) * _BLOCK for each in self.missing)


def set_dir(name: str) -> Path:
    """Where the ranks find the set."""
    return paths.data_dir() / name


def work_dir(name: str) -> Path:
    """What the fetcher has of a set beside it."""
    return paths.data_dir() / ".hvdcloud" / name


def fetch_all(request: DataRequest, *, publish: Callable[[tuple[DataState, ...]], None]) -> None:
    """Bring each data set; what fails of one stops no other."""
    os.umask(0o022)
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    board = Board((each.name for each in request.sets), publish)
    plans = []
    for each in request.sets:
        with _shown(board, each.name):
            if each.mounted:
                if not set_dir(each.name).is_dir():
                    why = f"data set {each.name} is not mounted at {set_dir(each.name)}"
                    raise NodeError(why, hint="hvdcloud down and hvdcloud up make the nodes with it")
                board.update(each.name, phase=READY)
            elif (plan := _planned(each, request, board)) is not None:
                plans.append(plan)
    for plan in _with_space(plans, board):
        with _shown(board, plan.name):
            _bring(plan, board)


@contextlib.contextmanager
def _shown(board: Board, name: str) -> Iterator[None]:
    """Whatever fails is the end of this set alone."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - shown to the user
        if isinstance(error, HvdcloudError):
            why = error
        elif isinstance(error, OSError) and is_disk_full(error):
            why = CapacityError(f"data set {name}: the disk of {paths.data_dir()} is full", hint=SPACE_HINT)
        else:
            why = NodeError(f"data set {name}: {error or type(error).__name__}", hint="hvdcloud run again")
        board.update(name, phase=FAILED, error=why.message, hint=why.hint, exit_code=int(why.code))


# -- what there is, and what is here -----------------------------------------------------------------------------------


def _planned(wanted: DataSet, request: DataRequest, board: Board) -> _Plan | None:
    """The plan; None: the set is there as it should be."""
    name, work = wanted.name, work_dir(wanted.name)
    board.update(name, phase=LISTING)
    bucket = open_bucket_here(wanted.source, endpoint=request.endpoint)
    try:
        objects = listed(bucket, wanted, index=request.index, count=request.count)
    except CredentialsError as error:
        raise _explained(error, "", bucket) from error
    size = sum(each.size for each in objects)
    board.update(name, total_files=len(objects), total_bytes=size)
    work.mkdir(parents=True, exist_ok=True)
    work.parent.chmod(0o700)
    promised = {each.name: [each.size, each.crc32c, each.generation] for each in objects}
    index = {"source": wanted.source, "endpoint": request.endpoint, "objects": promised}
    plan = _Plan(name=name, bucket=bucket, index=index)
    before = read_json(work / "index") or {}
    if before == index and set_dir(name).is_dir():
        remove_tree(work / "tree")
        board.update(name, files=len(objects), bytes=size, phase=READY)
        return None
    check_names([each.name for each in objects], ignores_case=ignores_case(work))
    same = all(before.get(key) == index[key] for key in ("source", "endpoint"))
    _look(plan, objects, known=before["objects"] if same else {})
    board.update(name, files=plan.files, bytes=plan.bytes)
    return plan


def listed(bucket: Bucket, wanted: DataSet, *, index: int, count: int) -> Sequence[ObjectInfo]:
    """The objects of a set, sorted by name, or node `index`'s share of them.

    Raises:
        UsageError: there is no bucket, nothing in it, or less than one file for each node.
        HvdcloudError: as the bucket says.
    """
    # What ends in a slash stands for a folder in consoles.
    every = [each for each in bucket.list("") if each.name and not each.name.endswith("/")]
    if not every:
        why = f"data set {wanted.name}: {wanted.source} has no objects"
        raise UsageError(why, hint=f"gcloud storage ls {wanted.source} shows whether the prefix is spelled so")
    if damaged := next((each.name for each in every if not CRC32C.fullmatch(each.crc32c)), None):
        raise CheckpointError(f"the list of {bucket.url} has no CRC32C of {damaged}", hint="hvdcloud run again")
    if wanted.per_node != "shard":
        return every
    if not (share := every[index::count]):
        why = f"data set {wanted.name} has {len(every)} files for {count} nodes, of which each gets its share"
        raise UsageError(why, hint=f"set per_node: all below data.{wanted.name} in hvdcloud.yaml, or use fewer nodes")
    return share


def check_names(names: Sequence[str], *, ignores_case: bool) -> None:
    """Raise unless each of these can be a file beside all others.

    Args:
        ignores_case: of the disk.

    Raises:
        CheckpointError: a name leaves its folder, or holds what no name may.
        UsageError: a name would make a repository, or cannot be beside another one.
    """
    for name in names:
        if max(len(part.encode(errors="replace")) for part in check_name(name)) > LONGEST_COMPONENT:
            why = f"{name!r} has a part of more than {LONGEST_COMPONENT} bytes, which no disk takes"
            raise UsageError(why, hint=_NAME_HINT)
    if len({*names}) < len(names):
        raise UsageError("the list of the data set has a name twice", hint="hvdcloud run again")
    if refused := refusals(names):
        raise UsageError(sentences(refused, "no file of a data set")[0], hint=_NAME_HINT)
    for name, why in clashes(names, ignores_case=ignores_case).items():
        raise UsageError(f"{name} cannot be a file of a data set: {why}", hint=_NAME_HINT)


def _look(plan: _Plan, objects: Sequence[ObjectInfo], *, known: Mapping[str, Sequence[Any]]) -> None:
    """Find out what is missing in the tree; what the visible set has is linked into it."""
    tree = work_dir(plan.name) / "tree"
    tree.mkdir(exist_ok=True)
    names = {each.name for each in objects}
    for folder, folders, files in os.walk(tree, topdown=False):
        for path in (Path(folder, name) for name in files):
            if str(path.relative_to(tree)) not in names:
                path.unlink()
        for path in (Path(folder, name) for name in folders):
            with contextlib.suppress(OSError):
                path.rmdir()
    for each in objects:
        path, there = tree / each.name, set_dir(plan.name) / each.name
        if path.is_file() and crc32c_of_file(path) != (each.size, each.crc32c):
            path.unlink()
        if not path.exists() and known.get(each.name) == plan.index["objects"][each.name] and there.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(there)
        if path.exists():
            plan.files += 1
            plan.bytes += each.size
        else:
            plan.missing.append(each)


def _with_space(plans: list[_Plan], board: Board) -> list[_Plan]:
    """The plans, if the disk has space for all of them; else none, and each says so."""
    needed, free = sum(plan.needed for plan in plans), shutil.disk_usage(paths.data_dir()).free
    if needed <= free:
        return plans
    what = f"{needed / 1e9:.2f} GB more, and the disk has {free / 1e9:.2f} GB left"
    for plan in plans:
        with _shown(board, plan.name):
            whose = f"data set {plan.name} needs" if len(plans) == 1 else f"the data sets need, {plan.name} among them,"
            raise CapacityError(f"{whose} {what}", hint=SPACE_HINT)
    return []


# -- the rest of it ----------------------------------------------------------------------------------------------------


def _bring(plan: _Plan, board: Board) -> None:
    tree = work_dir(plan.name) / "tree"
    board.update(plan.name, phase=FETCHING)

    def done(item: Download, error: Exception | None) -> None:
        if error is not None:
            # No further object is begun.
            raise _explained(error, item.name, plan.bucket) from error
        plan.files += 1
        plan.bytes += item.size
        board.update(plan.name, files=plan.files, bytes=plan.bytes)

    items = [
        Download(
            name=each.name, target=tree / each.name, size=each.size, crc32c=each.crc32c, generation=each.generation
        )
        for each in plan.missing
    ]
    plan.bucket.download_many(items, workers=WORKERS, on_done=done)
    board.update(plan.name, phase=VERIFYING)
    _make_visible(plan.name, plan.index)
    board.update(plan.name, phase=READY)


def _explained(error: Exception, name: str, bucket: Bucket) -> Exception:
    """What an error of the bucket means for a data set."""
    if isinstance(error, ObjectMissingError):
        why = f"{name} in {bucket.url} was deleted or replaced while the data set was fetched"
        return ObjectMissingError(why, hint="hvdcloud run lists it again, once nothing writes there")
    if isinstance(error, CorruptObjectError):
        return CorruptObjectError(
            f"{name} in {bucket.url} does not verify: its bytes don't have the CRC32C that the bucket promises",
            hint="the object is damaged in the bucket, or on its way; upload it again",
        )
    if isinstance(error, CredentialsError):
        hint = f'write data = ["{bucket.url}"] into hvdcloud.tfvars, then hvdcloud setup'
        return CredentialsError(error.message, hint=hint)
    if isinstance(error, CapacityError):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


def _make_visible(name: str, index: Mapping[str, Any]) -> None:
    """Make the tree, whose files are on the disk, the set; removes the one before."""
    work, target = work_dir(name), set_dir(name)
    tree, aside = work / "tree", work / "before"
    for folder, _, files in os.walk(tree):
        for file in files:
            Path(folder, file).chmod(FILE_MODE)
        sync_folder(Path(folder))
        if Path(folder) != tree:
            Path(folder).chmod(FOLDER_MODE)
    # Without an index, a set is not taken for another one: whatever ends this here, it is fetched again.
    (work / "index").unlink(missing_ok=True)
    remove_tree(aside)
    if target.exists():
        # A folder's own entry for its parent changes with the move, which needs the right to write to it.
        target.chmod(0o755)
        target.rename(aside)
    tree.rename(target)
    target.chmod(FOLDER_MODE)
    sync_folder(target.parent)
    write_json(work / "index", index)
    remove_tree(aside)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, although it is read-only; nothing where there is none."""
    with contextlib.suppress(FileNotFoundError):
        if os.geteuid() != 0:
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o755)
        shutil.rmtree(path)
