"""Which names of a data set's objects can become files below its folder, in one pass over the sorted names."""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator

from hvdcloud.checkpoints.manifest import LONGEST_COMPONENT
from hvdcloud.checkpoints.names import refusals, sentences
from hvdcloud.errors import UsageError
from hvdcloud.storage.base import check_name

# Whatever else may be wrong with a name has one of these in it; the others need no closer look, which takes longer.
_SUSPICIOUS = re.compile(r"[^ -~]|(?:^|/)(?:\.|/|$)|//|git|hg|head|objects|refs|commondir", re.IGNORECASE)
_HINT = "rename or delete the object in the bucket"


def check_names(names: Callable[[], Iterable[str]], *, ignores_case: bool) -> None:
    """Memory does not grow with the number of names, but for 36 bytes each where case is ignored.

    Args:
        names: in the order of a listing; may be asked for twice.
        ignores_case: of the disk.

    Raises:
        CheckpointError: a name leaves its folder, or holds what no name may.
        UsageError: a name would make a repository, or cannot be beside another one.
    """
    hashes = array("q")

    def looked_at() -> Iterator[str]:
        above: list[str] = []
        for name in names():
            _check_beside(name, above)
            if ignores_case:
                hashes.append(hash(_key(name)))
            if len(name) > LONGEST_COMPONENT or _SUSPICIOUS.search(name):
                check_name(name)
                if any(len(part.encode()) > LONGEST_COMPONENT for part in name.split("/")):
                    why = f"{name!r} has a part of more than {LONGEST_COMPONENT} bytes, which no disk takes"
                    raise UsageError(why, hint=_HINT)
                yield name

    if refused := refusals(looked_at()):
        raise UsageError(sentences(refused, "no file of a data set")[0], hint=_HINT)
    if ignores_case:
        _check_case(names, hashes)


def _check_beside(name: str, above: list[str]) -> None:
    """`above` has the names that begin this one, which in a sorted list are all that could be folders of it."""
    while above and not name.startswith(above[-1]):
        above.pop()
    for each in above:
        if name == each or name[len(each)] == "/":
            why = f"{each} and {name} cannot both be files: one is a folder of the other"
            raise UsageError(why if name != each else f"{name} is listed twice", hint=_HINT)
    above.append(name)


def _check_case(names: Callable[[], Iterable[str]], hashes: array[int]) -> None:
    ordered = sorted(hashes)
    twice = {a for a, b in itertools.pairwise(ordered) if a == b}
    if not twice:
        return
    seen: dict[str, str] = {}
    for name in names():
        key = _key(name)
        if hash(key) in twice and seen.setdefault(key, name) != name:
            raise UsageError(f"{seen[key]} and {name} differ in case only, which this disk ignores", hint=_HINT)


def _key(name: str) -> str:
    return name.casefold() if name.isascii() else unicodedata.normalize("NFC", name).casefold()
