"""`hvdcloud data push`: a folder of this machine into a bucket, as a data set."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.datasets.checksums import ChecksumIndex, opened_index
from hvdcloud.datasets.names import NameProblem, Problem, problems_of, set_name
from hvdcloud.datasets.push import Comparison, Progress, Pushed, compare, identical, send
from hvdcloud.datasets.scan import FolderScan, scan
from hvdcloud.errors import CheckpointError, InterruptedByUserError, UsageError
from hvdcloud.lifecycle.data_source import data_source, objects_of, opened_source
from hvdcloud.project_files import holds_home
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.steps import Steps
    from hvdcloud.storage.base import Bucket, ObjectInfo

_NAMED = 5
_PLAIN = re.compile(r"[a-z]+://[-\w./%+~@=]+")
"""What YAML takes for a text as it is."""
_INCOMPLETE = (Problem.UNREADABLE, Problem.UNSAFE)
"""What a folder holds and its data set in the bucket should too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPushResult:
    """What is in the bucket now.

    Attributes:
        name: for `data` in hvdcloud.yaml.
        files: of the folder that are in the bucket.
        files_sent: now; the others were there already.
        left_out: sentences about what is in the folder and was not sent.
        failed: sentences about files that should be there and are not.
        extra: objects there that the folder does not have, which nodes get as well.
    """

    name: str
    folder: Path
    url: str
    files: int
    bytes: int
    files_sent: int
    bytes_sent: int
    left_out: Sequence[str]
    failed: Sequence[str]
    extra: int
    seconds: float

    @property
    def yaml(self) -> str:
        """The lines for hvdcloud.yaml."""
        return f"data:\n  {self.name}: {self.url if _PLAIN.fullmatch(self.url) else json.dumps(self.url)}"


class DataPushError(CheckpointError):
    """Some files are not in the bucket; the others are."""

    def __init__(self, message: str, *, hint: str, details: str, result: DataPushResult) -> None:
        super().__init__(message, hint=hint, details=details)
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What there is on both sides."""

    root: Path
    url: str
    bucket: Bucket
    found: FolderScan
    objects: dict[str, ObjectInfo]
    comparison: Comparison


def data_push(console: Console, folder: Path, url: str, *, private: bool = False) -> DataPushResult:
    """Upload what the bucket does not have. Nothing in it is deleted.

    Args:
        url: gs://BUCKET[/PREFIX], or file:///DIR.
        private: files that look like credentials, too.

    Raises:
        UsageError: there is no such folder or bucket, or it cannot be a data set.
        DataPushError: some files were not sent, because they changed or cannot be read; the rest is there.
        CredentialsError, BucketUnreachableError, CapacityError: the bucket takes no more.
        InterruptedByUserError: Ctrl-C.
    """
    started = time.monotonic()
    pushed, progress = Pushed(), Progress()
    try:
        with console.steps() as steps:
            plan = _plan(console, folder, data_source(url), private=private)
            with opened_index() as connection:
                index = ChecksumIndex(connection, str(plan.root))
                stored = ChecksumIndex(connection, plan.bucket.url)
                with _shown(steps, folder, progress):
                    _push(plan, index=index, stored=stored, progress=progress, pushed=pushed)
                index.keep_only(file.name for file in plan.found.files)
    except KeyboardInterrupt:
        done = f"{counted(len(pushed.sent), 'file')} sent" if pushed.sent else "nothing was sent"
        hint = f"the same command sends the rest: {_command(folder, url)}"
        raise InterruptedByUserError(f"the push is stopped, {done}", hint=hint) from None
    result = _result(plan, pushed, seconds=time.monotonic() - started)
    if not result.failed:
        return result
    more = len(result.failed) - _NAMED
    details = [*result.failed[:_NAMED], *([f"and {counted(more, 'other')}"] if more > 0 else [])]
    message = f"{counted(len(result.failed), 'file')} of {folder} not sent; {counted(result.files, 'file')} in {url}"
    raise DataPushError(message, hint=_command(folder, url), details="\n".join(details), result=result)


def _plan(console: Console, folder: Path, url: str, *, private: bool) -> _Plan:
    root = Path(os.path.realpath(folder))
    bucket = opened_source(url)
    _check_folder(folder, root, url)
    with console.waiting(str(folder), "reading the folder"):
        prefix = url.removeprefix("gs://").partition("/")[2] if url.startswith("gs://") else ""
        found = scan(root, prefix=prefix, private=private)
    _say_left_out(console, found.left_out)
    if not found.files:
        raise UsageError(f"{folder} holds no file that can be sent", hint="name a folder with the files of a data set")
    for each in problems_of(file.name for file in found.files):
        console.warn(each.text)
    with console.waiting(str(folder), f"listing {url}"):
        objects = {info.name: info for info in objects_of(bucket)}
    comparison = compare(found.files, objects)
    if comparison.blocked:
        named = _named(comparison.blocked)
        raise UsageError(
            f"{url} and {folder} together would have a file and a folder of one name: {named}",
            hint="push to another prefix, or delete these objects",
        )
    if comparison.extra:
        number = counted(len(comparison.extra), "object")
        console.warn(f"{url} has {number} that {folder} has not, which nodes get too: {_named(comparison.extra)}")
    return _Plan(root=root, url=url, bucket=bucket, found=found, objects=objects, comparison=comparison)


def _push(plan: _Plan, *, index: ChecksumIndex, stored: ChecksumIndex, progress: Progress, pushed: Pushed) -> None:
    same, other = identical(
        plan.root,
        plan.comparison.maybe,
        plan.objects,
        bucket=plan.bucket,
        index=index,
        stored=stored,
        progress=progress,
    )
    pushed.there.extend(same)
    rest = sorted([*plan.comparison.send, *other], key=lambda file: file.name)
    send(
        plan.root,
        rest,
        plan.objects,
        bucket=plan.bucket,
        index=index,
        stored=stored,
        progress=progress,
        pushed=pushed,
    )


def _check_folder(folder: Path, root: Path, url: str) -> None:
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise UsageError(f"{folder} {what}", hint="hvdcloud data push DIR gs://BUCKET/PREFIX")
    if holds_home(root):
        raise UsageError(
            f"{folder} holds the home folder, and every file in it would be sent", hint="name a folder in it"
        )
    if url.startswith("file://"):
        target = Path(os.path.realpath(opened_source(url).url.removeprefix("file://")))
        if target == root or root in target.parents or target in root.parents:
            raise UsageError(f"one of {folder} and {url} is in the other", hint="name another folder")
    try:
        os.listdir(root)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", hint="name another folder") from error


def _say_left_out(console: Console, left_out: Sequence[NameProblem]) -> None:
    for sentence in _sentences(each for each in left_out if each.problem not in _INCOMPLETE):
        console.warn(sentence)


def _sentences(left_out: Iterable[NameProblem]) -> list[str]:
    """One for each reason."""
    by_reason: dict[Problem, list[str]] = {}
    for each in left_out:
        by_reason.setdefault(each.problem, []).extend(each.names)
    ways = {Problem.PRIVATE: "; --private sends it", Problem.LINK: "; cp -rL makes a folder without links"}
    return [
        f"not sent, since it {problem.value}: {_named(names)}{ways.get(problem, '')}"
        for problem, names in by_reason.items()
    ]


def _named(names: Sequence[str]) -> str:
    more = f" and {counted(len(names) - _NAMED, 'other')}" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@contextlib.contextmanager
def _shown(steps: Steps, folder: Path, progress: Progress) -> Iterator[None]:
    """Draws the progress during the block; a phase that has begun changes the line."""
    key = f"push {folder.resolve().name}"

    def show(phase: str, total: int) -> None:
        steps.update(key, phase, done=lambda: progress.bytes, total=total, in_bytes=True)

    progress.on_phase = show
    yield
    steps.finish(key)


def _result(plan: _Plan, pushed: Pushed, *, seconds: float) -> DataPushResult:
    present = [*pushed.there, *pushed.sent]
    incomplete = [each for each in plan.found.left_out if each.problem in _INCOMPLETE]
    failed = [each.text for each in incomplete]
    failed += [each.error.message for each in sorted(pushed.failed, key=lambda each: each.name)]
    return DataPushResult(
        name=set_name(plan.url if "/" in plan.url.partition("://")[2] else plan.root.name),
        folder=plan.root,
        url=plan.url,
        files=len(present),
        bytes=sum(file.size for file in present),
        files_sent=len(pushed.sent),
        bytes_sent=sum(file.size for file in pushed.sent),
        left_out=_sentences(each for each in plan.found.left_out if each.problem not in _INCOMPLETE),
        failed=failed,
        extra=len(plan.comparison.extra),
        seconds=seconds,
    )


def _command(folder: Path, url: str) -> str:
    return shlex.join(["hvdcloud", "data", "push", str(folder), url])
