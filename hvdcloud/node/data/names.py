"""Which names of a data set's objects can become files below its folder."""

from __future__ import annotations

from collections.abc import Sequence

from hvdcloud.checkpoints.manifest import LONGEST_COMPONENT
from hvdcloud.checkpoints.names import clashes, refusals, sentences
from hvdcloud.errors import UsageError
from hvdcloud.storage.base import check_name

_HINT = "rename or delete the object in the bucket"


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
            raise UsageError(why, hint=_HINT)
    if len({*names}) < len(names):
        raise UsageError("the list of the data set has a name twice", hint="hvdcloud run again")
    if refused := refusals(names):
        raise UsageError(sentences(refused, "no file of a data set")[0], hint=_HINT)
    if clash := clashes(names, ignores_case=ignores_case):
        name, why = next(iter(clash.items()))
        raise UsageError(f"{name} cannot be a file of a data set: {why}", hint=_HINT)
