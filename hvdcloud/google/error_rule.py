"""A line of a catalogue of errors of Google's APIs: which answers it is for, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from hvdcloud.errors import HvdcloudError


class Action(str, Enum):
    """What the caller of a failed create does next."""

    RETRY = "retry"
    """The same request, a little later. After a failed *operation* under a new requestId: the old one would only give
    back the operation that failed."""
    NEXT_ZONE = "next zone"
    NEXT_REGION = "next region"
    """Every other zone of this region would fail in the same way."""
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the catalogue; it holds if everything that it names is found.

    `cause` and `hint` may use {label}, {message}, {project}, {metric}, {limit}, {permission}, {url}, {place}, {login},
    {api}, {service}, {consumer}, {constraint}, {account}, {owner}.
    """

    action: Action
    error: type[HvdcloudError]
    names: frozenset[str] = frozenset()
    """Operation error codes, ErrorInfo reasons and the older `errors[].reason`."""
    text: str = ""
    """Regular expression that is searched in the message."""
    statuses: frozenset[int] = frozenset()
    cause: str = ""
    """Instead of the API's own message."""
    hint: str = ""
    patience: float = 0.0
    """Seconds for which an operation that failed so is asked for again; 0: a few times."""
    without_metadata: str = ""
    """The metadata item that is refused and that VMs can do without; empty: none."""
    source: str
    """Where the meaning comes from."""

    def holds(self, names: frozenset[str], message: str, status: int | None) -> bool:
        """All criteria that this rule has are met."""
        return (
            (not self.names or bool(self.names & names))
            and (not self.text or re.search(self.text, message, re.IGNORECASE) is not None)
            and (not self.statuses or status in self.statuses)
        )

    def says(self, hint: str, *, cause: str = "") -> Rule:
        """The same rule with these words for the user."""
        return replace(self, hint=hint, cause=cause)


def when(
    action: Action,
    error: type[HvdcloudError],
    *,
    names: str = "",
    text: str = "",
    statuses: Iterable[int] = (),
    patience: float = 0.0,
    without_metadata: str = "",
    source: str,
) -> Rule:
    """A rule without its words; `names` are separated by spaces."""
    found, answers = frozenset(names.split()), frozenset(statuses)
    return Rule(
        action=action,
        error=error,
        names=found,
        text=text,
        statuses=answers,
        patience=patience,
        without_metadata=without_metadata,
        source=source,
    )
