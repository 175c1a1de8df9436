"""Which ranks the others wait for. Pure.

All ranks of a synchronous step end it together, so the time between two steps is the same for all, and what a rank does
not need for its own part it spends waiting. The rank that waits least is the one that the others wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdcloud.runs.reports import RankWaits
from hvdcloud.runs.stacks import numbered_ranks
from hvdcloud.runs.state import RunState
from hvdcloud.units import some

LEAST_SECONDS = 10.0
"""Of training, before a rank is named."""
LEAST_SHARE = 0.1
"""Of the others' time; less is what ranks of equal machines differ by."""
_SAME = 0.3
"""Ranks whose waiting is nearer to the least than this part of the gap are slow as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks:
    """The ranks that the others wait for: one, or a few that are equally slow."""

    ranks: Sequence[int]
    nodes: Sequence[str]
    """Where they are, each once."""
    share: float
    """The part of the others' time, 0 to 1, that they wait for these ranks: beyond what these wait themselves."""
    recent: bool
    """It is so in the last minute; else over the whole run."""

    @property
    def text(self) -> str:
        """`rank 3 (digits-1): the others wait 38 % of the time for it`."""
        when = "of the last minute" if self.recent else "of the time"
        share, them = f"{100 * self.share:.0f} %", "it" if len(self.ranks) == 1 else "them"
        return f"{numbered_ranks(self.ranks)} ({some(self.nodes, most=4)}): the others wait {share} {when} for {them}"


def slow_ranks_of(state: RunState) -> SlowRanks | None:
    """The ranks that the others wait for: of an active run in the last minute, of one that has ended over all of it."""
    # Ranks that a smaller elastic run no longer has.
    now = [each for each in state.waits if not state.world or each.rank < state.world]
    return slow_ranks(now, recent=not state.done)


def slow_ranks(waits: Sequence[RankWaits], *, recent: bool = False) -> SlowRanks | None:
    """The ranks that the others wait for; None: there are none, or too little is known.

    Args:
        recent: in the last minute; else over the whole run.
    """
    shares = {}
    for each in waits:
        share = each.recently if recent else each.share
        if share is not None and each.seconds is not None and each.seconds >= LEAST_SECONDS:
            shares[each.rank] = share
    if len(shares) < 2:
        return None
    least, most = min(shares.values()), max(shares.values())
    slow = sorted(rank for rank, share in shares.items() if share - least <= _SAME * (most - least))
    others = [share for rank, share in shares.items() if rank not in slow]
    # Where most ranks are among them, a few wait for all the others, and no machine is to blame.
    if not others or len(slow) > len(others):
        return None
    gap = sum(others) / len(others) - sum(shares[rank] for rank in slow) / len(slow)
    if gap < LEAST_SHARE:
        return None
    nodes = dict.fromkeys(each.node or "?" for each in sorted(waits, key=lambda each: each.rank) if each.rank in slow)
    return SlowRanks(ranks=slow, nodes=tuple(nodes), share=round(gap, 4), recent=recent)
