"""Names that a data set's objects or files can have, and those that a node could not give to a file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from hvdcloud.checkpoints.manifest import LONGEST_COMPONENT
from hvdcloud.checkpoints.names import refusals
from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import check_name


class Problem(Enum):
    """What is wrong with a name."""

    UNSAFE = "no file below a folder can have this name"
    REPOSITORY = "would make a repository, whose configuration can run commands, or is hvdcloud's own"
    ALSO_FOLDER = "is a file and a folder"
    CASE = "differs only by case, which a case-insensitive disk cannot hold"
    LINK = "is a link"
    LEADS_OUT = "is a link that leads out of the folder, where nodes see nothing"
    SPECIAL = "is neither a file nor a folder"
    PRIVATE = "looks like credentials"
    TEMPORARY = "is what a killed transfer has left"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameProblem:
    """One name, or several that collide, and what is wrong."""

    problem: Problem
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """A sentence, such as `a/b is a file and a folder`."""
        return f"{' and '.join(map(repr, self.names))} {self.problem.value}"


def is_safe(name: str) -> bool:
    """Whether an object of this name can be a file below a folder."""
    try:
        parts = check_name(name)
    except CheckpointError:
        return False
    return all(len(part.encode()) <= LONGEST_COMPONENT for part in parts)


def problems_of(names: Iterable[str]) -> Iterator[NameProblem]:
    """What is wrong with the names of a data set, whose objects of a name that ends in "/" are folders and left out."""
    files: set[str] = set()
    folders: set[str] = set()
    folded: dict[str, str] = {}
    for name in names:
        if not is_safe(name):
            yield NameProblem(problem=Problem.UNSAFE, names=(name,))
            continue
        files.add(name)
        folders.update(folders_above(name, known=folders))
        if (other := folded.setdefault(_folded(name), name)) != name:
            yield NameProblem(problem=Problem.CASE, names=(other, name))
    for name in sorted(refusals(files)):
        yield NameProblem(problem=Problem.REPOSITORY, names=(name,))
    for name in sorted(files & folders):
        yield NameProblem(problem=Problem.ALSO_FOLDER, names=(name,))
    # Of folders that differ by case their files do too, unless they have different names.
    folded_folders: dict[str, str] = {}
    for name in sorted(folders):
        if (other := folded_folders.setdefault(_folded(name), name)) != name:
            yield NameProblem(problem=Problem.CASE, names=(other, name))


def folders_above(name: str, *, known: Iterable[str] = ()) -> Iterator[str]:
    """The folders that a file of this name is in, from the innermost up to the first that is known."""
    folder = name.rpartition("/")[0]
    while folder and folder not in known:
        yield folder
        folder = folder.rpartition("/")[0]


def set_name(text: str) -> str:
    """The name of a data set in hvdcloud.yaml, made from a folder's or a prefix's."""
    name = re.sub(r"[^a-z0-9_]+", "-", text.rpartition("/")[2].lower()).strip("-_")[:63].strip("-_")
    return name if re.match(r"[a-z]", name) else f"data-{name}".rstrip("-")


def _folded(name: str) -> str:
    return name if name.isascii() and name.islower() else unicodedata.normalize("NFC", name).casefold()
