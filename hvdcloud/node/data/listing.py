"""What a data set consists of, as a file: a line for each object, sorted by name, so that memory stays flat.

The first line says where the objects are. The same objects make the same bytes, so two listings are compared whole.
"""

from __future__ import annotations

import filecmp
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.errors import CheckpointError, UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node.data.sets import DataRequest, DataSet
from hvdcloud.storage.base import ObjectInfo, check_name
from hvdcloud.storage.reader import Reader

LISTERS = 8
_NO_CRC = "-"
_ENOUGH = 256 << 10
"""Bytes of an earlier listing that are worth several listers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """One object of a data set. `crc32c` is empty where the bucket is a folder, which promises none."""

    name: str
    size: int
    crc32c: str
    generation: int


def source_line(wanted: DataSet, endpoint: str | None) -> bytes:
    """The first line: objects of another source have nothing to do with these, even under the same name."""
    return json.dumps({"format": 1, "source": wanted.source, "endpoint": endpoint}).encode() + b"\n"


def write_listing(
    path: Path, wanted: DataSet, request: DataRequest, open_: Callable[[], Reader], *, earlier: Path | None
) -> tuple[int, int]:
    """List the source into `path`, with this node's share where it gets one. Returns how many files, and their bytes.

    Args:
        earlier: an earlier listing of the source: where its names divide it, parts are listed side by side.

    Raises:
        UsageError: there is no bucket, nothing in it, or less than one file for each node.
        HvdcloudError: as the bucket says.
    """
    bounds = _bounds(earlier) if earlier is not None else []
    parts = [path.with_name(f"{path.name}.{number}") for number in range(len(bounds) + 1)]
    try:
        _list_parts(parts, ["", *bounds, ""], open_)
        with path.open("wb") as out:
            out.write(source_line(wanted, request.endpoint))
            index, count = (request.index, request.count) if wanted.per_node == "shard" else (0, 1)
            every = files = size = 0
            for part in parts:
                with part.open("rb") as lines:
                    for line in lines:
                        if every % count == index:
                            out.write(line)
                            files += 1
                            size += int(line.partition(b" ")[0])
                        every += 1
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    if every == 0:
        why = f"data set {wanted.name}: {wanted.source} has no objects"
        raise UsageError(why, hint=f"gcloud storage ls {wanted.source} shows whether the prefix is spelled so")
    if files == 0:
        why = f"data set {wanted.name} has {every} files for {count} nodes, of which each gets its share"
        raise UsageError(why, hint=f"set per_node: all below data.{wanted.name} in hvdcloud.yaml, or use fewer nodes")
    return files, size


def objects(path: Path) -> Iterator[Object]:
    """The objects of a listing. Raises CheckpointError: a line is damaged."""
    with path.open("rb") as lines:
        next(lines, None)
        for line in lines:
            try:
                size, crc32c, generation, name = line[:-1].decode().split(" ", 3)
                yield Object(
                    name=name, size=int(size), crc32c="" if crc32c == _NO_CRC else crc32c, generation=int(generation)
                )
            except ValueError as error:
                raise CheckpointError(f"{path} is damaged: {error}", hint=f"remove {path} and run again") from error


def names(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        next(lines, None)
        for line in lines:
            yield line[:-1].decode().split(" ", 3)[3]


def same(a: Path, b: Path) -> bool:
    """Whether two listings have the same objects of the same source."""
    try:
        return filecmp.cmp(a, b, shallow=False)
    except FileNotFoundError:
        return False


def same_source(a: Path, b: Path) -> bool:
    """Whether two listings are of one source."""
    try:
        with a.open("rb") as one, b.open("rb") as other:
            return parse_object(one.readline()) == parse_object(other.readline())
    except FileNotFoundError:
        return False


def _list_parts(parts: list[Path], bounds: list[str], open_: Callable[[], Reader]) -> None:
    failures: list[Exception] = []

    def work(part: Path, start: str, end: str) -> None:
        reader = open_()
        try:
            with part.open("wb") as out:
                for page in reader.pages(start=start, end=end):
                    if failures:
                        return
                    out.write(b"".join(_lines(page)))
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            failures.append(error)
        finally:
            reader.close()

    given = list(zip(parts, bounds, bounds[1:], strict=False))
    threads = [threading.Thread(target=work, args=each, daemon=True) for each in given[1:]]
    for thread in threads:
        thread.start()
    work(*given[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _lines(page: Iterable[ObjectInfo]) -> Iterator[bytes]:
    for each in page:
        # An empty object that stands for a folder in consoles.
        if each.name.endswith("/") or not each.name:
            continue
        if "\n" in each.name:
            check_name(each.name)
        try:
            yield f"{each.size} {each.crc32c or _NO_CRC} {each.generation} {each.name}\n".encode()
        except UnicodeEncodeError:
            check_name(each.name)


def _bounds(earlier: Path) -> list[str]:
    """Names that divide an earlier listing into parts of about one length."""
    try:
        size = earlier.stat().st_size
        if size < _ENOUGH:
            return []
        found: list[str] = []
        with earlier.open("rb") as file:
            for number in range(1, LISTERS):
                file.seek(size * number // LISTERS)
                file.readline()
                found.append(file.readline()[:-1].decode().split(" ", 3)[3])
    except (FileNotFoundError, ValueError, IndexError):
        return []
    return found if all(a < b for a, b in itertools.pairwise(found)) else []
