"""`hvdcloud data check`: what the data sets hold, and what nodes could not have, before there are nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.datasets.checksums import ChecksumIndex, opened_index
from hvdcloud.datasets.names import NameProblem, Problem, problems_of
from hvdcloud.datasets.push import Progress, compare, identical
from hvdcloud.datasets.scan import links_out, scan
from hvdcloud.errors import ExitCode, HvdcloudError, UsageError
from hvdcloud.lifecycle.data_source import data_source, objects_of, opened_source
from hvdcloud.private_files import private_part
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.config.data import DataConfig
    from hvdcloud.config.model import Config
    from hvdcloud.console import Console

BLOCK = 4096
"""Bytes in which a disk is given out; a file of one byte takes as many."""
_KEPT = 1000
"""How many problems of one set are shown in full."""
_HARMLESS = (Problem.CASE, Problem.TEMPORARY)
"""A node's disk tells upper case from lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSet:
    """One data set.

    Attributes:
        per_node: "all" or "shard".
        node_bytes: what a node's disk needs for it; the largest share of a shard. 0: it is mounted.
        problems: sentences about names, and about what cannot be read.
        error: why nothing is known of it.
    """

    name: str
    source: str
    per_node: str
    files: int = 0
    bytes: int = 0
    node_bytes: int = 0
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()
    error: str = ""
    hint: str = ""
    exit_code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCheckResult:
    """All of them."""

    sets: Sequence[CheckedSet]
    nodes: int
    node_bytes: int

    @property
    def exit_code(self) -> ExitCode:
        """That of the first set with something to fix."""
        return next((each.exit_code for each in self.sets if each.exit_code), ExitCode.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedResult:
    """A folder against a bucket.

    Attributes:
        same: files with the same size and CRC32C in both.
        missing: names that only the folder has.
        different: names of which the bytes differ.
        extra: names that only the bucket has.
        private: names that only the folder has, and that `data push` does not send, since they look like credentials.
    """

    folder: Path
    url: str
    same: int
    bytes: int
    missing: Sequence[str]
    different: Sequence[str]
    extra: Sequence[str]
    private: Sequence[str]

    @property
    def exit_code(self) -> ExitCode:
        """9 unless both hold the same."""
        return ExitCode.CHECKPOINT if self.missing or self.different or self.extra else ExitCode.OK


def data_check(config: Config, console: Console, *, name: str | None) -> DataCheckResult:
    """Look at the data sets of hvdcloud.yaml; nothing is changed, and what is wrong with one is in its entry.

    Args:
        name: of one set; None: all.

    Raises UsageError: there is no such set.
    """
    if not config.data:
        hint = "hvdcloud data push DIR gs://BUCKET/PREFIX uploads one and prints the lines"
        raise UsageError("hvdcloud.yaml names no data sets: it has no `data`", hint=hint)
    if name is not None and name not in config.data:
        raise UsageError(f"hvdcloud.yaml has no data set {name!r}", hint=f"one of: {', '.join(config.data)}")
    names = list(config.data) if name is None else [name]
    checked = [_checked(each, config.data[each], console, nodes=config.nodes) for each in names]
    return DataCheckResult(sets=checked, nodes=config.nodes, node_bytes=sum(each.node_bytes for each in checked))


def compare_folder(console: Console, folder: Path, url: str) -> ComparedResult:
    """Compare every file of a folder with the bucket, by size and CRC32C. Nothing is changed.

    Raises UsageError: there is no such folder or bucket.
    """
    bucket = opened_source(data_source(url))
    try:
        with console.waiting(str(folder), "reading the folder"):
            found = scan(folder, private=True)
    except OSError as error:
        hint = "hvdcloud data check DIR gs://BUCKET/PREFIX"
        raise UsageError(f"{folder} cannot be read: {error.strerror}", hint=hint) from error
    with console.waiting(str(folder), f"listing {url}"):
        objects = {info.name: info for info in objects_of(bucket)}
    comparison = compare(found.files, objects)
    progress = Progress()
    with opened_index() as connection, console.steps() as steps:
        key = f"check {folder.resolve().name}"
        progress.on_phase = lambda phase, total: steps.update(
            key, phase, done=lambda: progress.bytes, total=total, in_bytes=True
        )
        same, other = identical(
            folder.resolve(),
            comparison.maybe,
            objects,
            bucket=bucket,
            index=ChecksumIndex(connection, str(folder.resolve())),
            stored=ChecksumIndex(connection, bucket.url),
            progress=progress,
        )
        steps.drop(key)
    only_here = [file.name for file in comparison.send if file.name not in objects]
    private = [name for name in only_here if private_part(name, folder / name) is not None]
    missing = sorted({*only_here} - {*private})
    return ComparedResult(
        folder=folder,
        url=bucket.url,
        same=len(same),
        bytes=sum(file.size for file in same),
        missing=missing,
        different=sorted(
            [file.name for file in other] + [file.name for file in comparison.send if file.name in objects]
        ),
        extra=comparison.extra,
        private=private,
    )


def _checked(name: str, config: DataConfig, console: Console, *, nodes: int) -> CheckedSet:
    empty = CheckedSet(name=name, source=config.source, per_node=config.per_node)
    try:
        with console.waiting(name, f"reading {config.source}" if config.folder else f"listing {config.source}"):
            return _folder_set(empty, config.folder) if config.folder else _bucket_set(empty, nodes=nodes)
    except HvdcloudError as error:
        return replace(empty, error=error.message, hint=error.hint, exit_code=error.code)
    except OSError as error:
        why = f"{config.folder} cannot be read: {error.strerror or error}"
        hint = f"put the files there, or correct data.{name} in hvdcloud.yaml"
        return replace(empty, error=why, hint=hint, exit_code=ExitCode.USAGE)


def _folder_set(empty: CheckedSet, folder: Path) -> CheckedSet:
    """One that is mounted: nodes see the files as they are, whatever their names."""
    found = scan(folder, private=True)
    by_kind: dict[Problem, list[NameProblem]] = {}
    for each in found.left_out:
        by_kind.setdefault(each.problem, []).append(each)
    problems = [*links_out(folder, by_kind.get(Problem.LINK, [])), *by_kind.get(Problem.UNREADABLE, [])]
    if not found.files and not found.left_out:
        raise UsageError(f"{folder} is empty", hint=f"correct data.{empty.name} in hvdcloud.yaml")
    return _with_problems(replace(empty, files=len(found.files), bytes=found.bytes), problems)


def _bucket_set(empty: CheckedSet, *, nodes: int) -> CheckedSet:
    bucket = opened_source(empty.source)
    count = total = 0
    shares = Counter[int]()
    first = None
    parts = nodes if empty.per_node == "shard" else 1

    def names() -> Iterator[str]:
        nonlocal count, total, first
        for info in objects_of(bucket):
            shares[count % parts] += -(-info.size // BLOCK) * BLOCK
            count += 1
            total += info.size
            first = first or (info if info.size else None)
            yield info.name

    problems = list(problems_of(names()))
    if not count:
        hint = f"hvdcloud data push DIR {empty.source}, or correct data.{empty.name} in hvdcloud.yaml"
        raise UsageError(f"{empty.source} holds no objects", hint=hint)
    if first is not None:
        # To list objects is another permission than to read them.
        next(iter(bucket.pieces(first.name)), b"")
    found = replace(empty, files=count, bytes=total, node_bytes=max(shares.values()))
    checked = _with_problems(found, problems)
    if parts > count:
        warning = f"{counted(parts, 'node')} share {counted(count, 'file')}: some get none"
        checked = replace(checked, warnings=[*checked.warnings, warning])
    return checked


def _with_problems(checked: CheckedSet, problems: Sequence[NameProblem]) -> CheckedSet:
    bad = [each.text for each in problems if each.problem not in _HARMLESS]
    return replace(
        checked,
        problems=bad[:_KEPT],
        warnings=[each.text for each in problems if each.problem in _HARMLESS][:_KEPT],
        hint="rename them" if bad else "",
        exit_code=ExitCode.USAGE if bad else ExitCode.OK,
    )
