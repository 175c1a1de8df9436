"""What has to be fetched of a data set: all but what the node has already, which is linked into the new tree."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hvdcloud.json_values import parse_object
from hvdcloud.node.data import listing, tree
from hvdcloud.node.data.names import check_names
from hvdcloud.node.data.sets import DataRequest, DataSet
from hvdcloud.storage.base import ignores_case
from hvdcloud.storage.checksum import crc32c_of_file
from hvdcloud.storage.reader import Reader

RANGE = 16 << 20
"""Bytes of a range. An object of more than two is fetched in ranges."""
_BLOCK = 4096


@dataclass(slots=True, kw_only=True)
class Plan:
    """Of one set.

    Attributes:
        present_files, present_bytes: what of the set is here and verified.
        needed: bytes of disk.
        needed_files: of those that are not here.
        ranges: CRC32C of each range that is here, by name and generation, then by its first byte.
    """

    number: int
    wanted: DataSet
    present_files: int = 0
    present_bytes: int = 0
    needed: int = 0
    needed_files: int = 0
    ranges: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)

    @property
    def todo(self) -> Path:
        """The listing of what is to be fetched."""
        return tree.work_dir(self.wanted.name) / "todo"

    @property
    def ranges_file(self) -> Path:
        """A line for each range that is here."""
        return tree.work_dir(self.wanted.name) / "ranges"


def is_ranged(size: int) -> bool:
    """Whether an object is fetched in ranges."""
    return size > 2 * RANGE


def make_plan(
    number: int, request: DataRequest, open_: Callable[[], Reader], counted: Callable[[int, int], None]
) -> Plan:
    """List a set and make its tree, with all in it that need not be fetched. A set with nothing to change is left as it
    is: then there is no tree.

    Args:
        counted: takes the set's files and bytes as soon as they are known.

    Raises HvdcloudError: as the bucket says, or its names cannot be files; OSError.
    """
    wanted = request.sets[number]
    name, work = wanted.name, tree.work_dir(wanted.name)
    work.mkdir(parents=True, exist_ok=True)
    work.parent.chmod(0o700)
    fresh, current = work / "listing.new", work / "listing"
    index = tree.index_file(name)
    files, size = listing.write_listing(fresh, wanted, request, open_, earlier=index)
    counted(files, size)
    plan = Plan(number=number, wanted=wanted)
    if index is not None and listing.same(fresh, index):
        tree.clean(name)
        plan.present_files, plan.present_bytes = files, size
        return plan
    check_names(lambda: listing.names(fresh), ignores_case=ignores_case(work))
    resumed = _resume(plan, fresh)
    fresh.replace(current)
    others = [each for each in (work / "previous",) if each.is_dir()]
    if index is not None and listing.same_source(current, index):
        others.append(tree.set_dir(name))
    trusted = not resumed or tree.survived_boot(name)
    _fill(plan, resumed=resumed, trusted=trusted, others=[os.fspath(each) for each in others])
    tree.note_boot(name)
    tree.remove_tree(work / "previous")
    return plan


def _resume(plan: Plan, fresh: Path) -> bool:
    """Keep a tree that was begun for the same objects; one for others becomes a source of links. Returns whether it was
    kept."""
    name = plan.wanted.name
    work, begun, previous = tree.work_dir(name), tree.tree_dir(name), tree.work_dir(name) / "previous"
    survived = tree.survived_boot(name)
    if not survived:
        plan.ranges_file.unlink(missing_ok=True)
    if begun.is_dir():
        if listing.same(fresh, work / "listing"):
            plan.ranges = _read_ranges(plan.ranges_file)
            return True
        tree.remove_tree(previous)
        if survived and listing.same_source(fresh, work / "listing"):
            begun.rename(previous)
            plan.ranges = _read_ranges(plan.ranges_file)
        else:
            tree.remove_tree(begun)
            plan.ranges_file.unlink(missing_ok=True)
    else:
        tree.remove_tree(previous)
        plan.ranges_file.unlink(missing_ok=True)
    begun.mkdir()
    tree.note_boot(name)
    return False


def _fill(plan: Plan, *, resumed: bool, trusted: bool, others: list[str]) -> None:
    base = os.fspath(tree.tree_dir(plan.wanted.name))
    folder = base
    current = tree.work_dir(plan.wanted.name) / "listing"
    with current.open("rb") as lines, plan.todo.open("wb") as todo:
        todo.write(lines.readline())
        for line, each in zip(lines, listing.objects(current), strict=True):
            path = f"{base}/{each.name}"
            parent = path.rpartition("/")[0]
            if parent != folder:
                Path(parent).mkdir(parents=True, exist_ok=True)
                folder = parent
            have = resumed and tree.is_marked(path, size=each.size, generation=each.generation)
            if have and not trusted and each.crc32c:
                have = crc32c_of_file(Path(path)) == (each.size, each.crc32c)
            for other in () if have else others:
                source = f"{other}/{each.name}"
                if tree.is_marked(source, size=each.size, generation=each.generation):
                    _link(source, path)
                    have = True
                    break
            if have:
                plan.present_files += 1
                plan.present_bytes += each.size
                continue
            if resumed and not is_ranged(each.size):
                # Its bytes count against what is free, and are written again.
                Path(path).unlink(missing_ok=True)
            missing = each.size
            if is_ranged(each.size):
                done = _usable_ranges(plan, each, path, others)
                here = sum(min(RANGE, each.size - start) for start in done)
                plan.present_bytes += here
                missing -= here
            plan.needed += -(-missing // _BLOCK) * _BLOCK
            plan.needed_files += 1
            todo.write(line)


def _usable_ranges(plan: Plan, each: listing.Object, path: str, others: list[str]) -> dict[int, int]:
    """The ranges of an object that are in its file, which is linked here if it is in another tree."""
    key = (each.name, each.generation)
    done = plan.ranges.get(key)
    if done is None:
        return {}
    if len(done) == -(-each.size // RANGE):
        # All came, and their CRC32C was not compared any more, which follows the last one.
        del done[max(done)]
    for place in (path, *(f"{other}/{each.name}" for other in others)):
        if Path(place).is_file() and os.lstat(place).st_size == each.size:
            if place != path:
                _link(place, path)
            return done
    del plan.ranges[key]
    return {}


def _link(source: str, path: str) -> None:
    try:
        os.link(source, path, follow_symlinks=False)
    except FileExistsError:
        Path(path).unlink()
        os.link(source, path, follow_symlinks=False)


def range_line(name: str, generation: int, start: int, crc: int) -> bytes:
    """A line of the file of ranges."""
    return json.dumps({"name": name, "generation": generation, "start": start, "crc": crc}).encode() + b"\n"


def _read_ranges(path: Path) -> dict[tuple[str, int], dict[int, int]]:
    found: dict[tuple[str, int], dict[int, int]] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return found
    for line in lines:
        # The last one may be cut.
        if value := parse_object(line):
            found.setdefault((value["name"], value["generation"]), {})[value["start"]] = value["crc"]
    return found
