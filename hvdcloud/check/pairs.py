"""Which nodes are measured with each other, and when. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MOST_ROUNDS = 3
"""Of large clusters: with how many others each node is measured."""
MOST_AT_ONCE = 8
"""Pairs at a time: the head starts a launcher for each."""


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pairs of nodes, those of one round without a node in common; of up to four nodes every pair.

    By the circle method of a round-robin tournament: the first node stays, the others move on by one place each round.
    """
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    found: list[list[tuple[str, str]]] = []
    # With an odd number each node sits out one round.
    for _ in range(min(len(circle) - 1, MOST_ROUNDS)):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = [(one, other) for one, other in facing if one is not None and other is not None]
        found += [pairs[start : start + MOST_AT_ONCE] for start in range(0, len(pairs), MOST_AT_ONCE)]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found
