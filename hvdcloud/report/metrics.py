"""What a training program prints as numbers: loss, accuracy, images a second; and when it printed them. Pure.

A log has no times. The head's samples say how long it was at each moment, which gives every line its time, to a few
seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.runs.log_lines import Speaker, counted, numbers_in, rank_and_text

_LONGEST_LINE = 2000
MOST_POINTS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number over time."""

    name: str
    """`loss`, `images/s`."""
    points: Sequence[tuple[float, float]]
    """Seconds since the run began, or the number of the line that had it; and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What the run printed: rank 0 of it, on any worker."""

    series: Sequence[Series]
    timed: bool
    """The points are at times; False: nothing says when the lines were written, and they are counted."""


def read_metrics(
    log: bytes, *, samples: Sequence[Mapping[str, Any]], started: float | None, elastic: bool = False
) -> Metrics:
    """The numbers in a run's log.

    Args:
        samples: the head's; each may say how long the log was.
        started: of the run, seconds since the epoch.
        elastic: rank 0 may have moved from one worker to another.
    """
    speaker = Speaker(elastic=elastic)
    clock = _Clock(samples, started)
    found: dict[str, list[tuple[float, float]]] = {}
    end, count = 0, 0
    for line in log.split(b"\n"):
        end += len(line) + 1
        whose = rank_and_text(line)
        if whose is None or not speaker.may(whose[0]):
            continue
        said = whose[1][:_LONGEST_LINE].decode(errors="replace")
        values, at_epoch = numbers_in(said), counted(said)
        if not (values or at_epoch) or not speaker.says(whose[0], at_epoch) or not values:
            continue
        count += 1
        at = clock.time_of(min(end, len(log))) if clock.runs else float(count)
        for name, value in values.items():
            found.setdefault(name, []).append((at, value))
    series = [Series(name=name, points=thinned(points)) for name, points in found.items() if len(points) > 1]
    return Metrics(series=series, timed=clock.runs)


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> Sequence[tuple[float, float]]:
    """At most so many of them, the first and the last included."""
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
