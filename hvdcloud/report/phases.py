"""The time of a run in five phases, with what each has cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.units import dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.runs.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a run's time."""

    name: str
    """boot: the nodes, if it is their first run, and the start of its ranks | data: the nodes fetch its data sets |
    training | upload: of the last checkpoints | teardown: until the nodes are deleted"""
    seconds: float
    dollars: float
    """Of all nodes, at the rate of the run's start; 0 where they cost nothing or the rate is not known."""


def phases(state: RunState, *, until: float | None = None, teardown: float = 0.0) -> tuple[Phase, ...]:
    """The phases that took any time; empty: the run's state does not say when it began.

    Args:
        until: its last sign of life where its end is not known, in seconds since the epoch.
        teardown: seconds; the run's state does not know them.
    """
    about, started = state.about, state.started
    ended = state.ended if state.ended is not None else until
    if started is None or ended is None:
        return ()
    trained = state.training_until if state.training_until is not None else ended
    trains = state.training_since if state.training_since is not None else trained
    # Without a number it has waited until it ended.
    waited = state.data_seconds if state.data_seconds is not None else trains - started
    data = max(0.0, min(waited, trains - started)) if state.data else 0.0
    lasted = {
        "boot": max(0.0, about.boot_seconds or 0.0) + max(0.0, trains - started - data),
        "data": data,
        "training": trained - trains,
        "upload": ended - trained,
        "teardown": teardown,
    }
    rate = max(0.0, about.dollars_per_hour or 0.0) / 3600
    return tuple(Phase(name=name, seconds=each, dollars=rate * each) for name, each in lasted.items() if each > 0)


def phases_text(parts: Sequence[Phase]) -> str:
    """`boot 1 min 45 s ($0.03), training 6 min 12 s ($0.09)`; without dollars where there are none."""
    money = any(part.dollars for part in parts)
    return ", ".join(
        f"{part.name} {seconds(part.seconds)}" + (f" ({dollars(part.dollars)})" if money else "") for part in parts
    )
