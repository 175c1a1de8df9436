"""What a training program prints as numbers: loss, accuracy, images a second; and when it printed them. Pure.

A log has no times. The head's samples say how long it was at each moment, which gives every line its time, to a few
seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_POINTS = 4000
_MOST_KEPT = 16 * MOST_POINTS
"""Points of a series while the log is read; of more, every second one is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number over time."""

    name: str
    """`loss`, `images/s`."""
    points: Sequence[tuple[float, float]]
    """Seconds since the run began, or the number of the line that had it; and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What rank 0 of the run printed; of an elastic run, every rank."""

    series: Sequence[Series]
    timed: bool
    """The points are at times; False: nothing says when the lines were written, and they are counted."""


class MetricsReader:
    """Collects the numbers that a run's lines name.

    Args:
        samples: the head's; each may say how long the log was.
        started: of the run, seconds since the epoch.
    """

    def __init__(self, *, samples: Sequence[Mapping[str, Any]], started: float | None) -> None:
        self._clock = _Clock(samples, started)
        self._found: dict[str, list[tuple[float, float]]] = {}
        self._count = 0

    def add(self, values: Mapping[str, float], *, end: int) -> None:
        """Take the numbers of the next line that names some, and up to where in the log it goes."""
        self._count += 1
        at = self._clock.time_of(end) if self._clock.runs else float(self._count)
        for name, value in values.items():
            points = self._found.setdefault(name, [])
            points.append((at, value))
            if len(points) > _MOST_KEPT:
                del points[1:-1:2]

    def metrics(self) -> Metrics:
        """What was found."""
        series = [Series(name=name, points=thinned(points)) for name, points in self._found.items() if len(points) > 1]
        return Metrics(series=series, timed=self._clock.runs)


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> Sequence[tuple[float, float]]:
    """At most this many of them, the first and the last included."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


class _Clock:
    """When the log had reached a length, in seconds since the run began."""

    def __init__(self, samples: Sequence[Mapping[str, Any]], started: float | None) -> None:
        known: list[tuple[int, float]] = []
        for sample in samples:
            size = sample.get("log")
            if not isinstance(size, int) or isinstance(size, bool) or started is None:
                continue
            # A log only grows; of several samples with one length the first says when it was reached.
            if not known or size > known[-1][0]:
                known.append((size, max(0.0, sample["t"] - started)))
        self.runs = bool(known)
        self._sizes = [0, *(size for size, _ in known)]
        self._times = [0.0, *(at for _, at in known)]

    def time_of(self, size: int) -> float:
        """Of a length above 0."""
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes):
            return self._times[-1]
        before, after = self._sizes[at - 1], self._sizes[at]
        part = (size - before) / (after - before)
        return self._times[at - 1] + part * (self._times[at] - self._times[at - 1])
