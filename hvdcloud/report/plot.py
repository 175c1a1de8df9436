"""Line plots: where everything is drawn; figure.html.jinja draws it as SVG, in the colours of page.css. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from hvdcloud.report.metrics import Series, thinned

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 24
COLOURS = 8
"""How many lines can be told apart; more of them are drawn faintly, and their mean over them."""
_MOST_POINTS = 600
_GAP_SECONDS, _GAP_TIMES = 15.0, 4.0
"""A line has a gap where its points are this far apart, and this many times further than most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A number beside an axis."""

    at: float
    label: str
    anchor: str = "end"
    """Which part of the label is at that point: start | middle | end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot."""

    name: str
    style: str
    """CSS class."""
    path: str
    """SVG path data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot with its legend; places are in the coordinates of the SVG's view box."""

    width: ClassVar[int] = WIDTH
    height: ClassVar[int] = HEIGHT
    left: ClassVar[int] = LEFT
    right: ClassVar[int] = WIDTH - RIGHT

    title: str
    values: Sequence[Tick]
    """Of the vertical axis."""
    times: Sequence[Tick]
    """Of the horizontal axis; numbers of lines where times are not known."""
    lines: Sequence[Line]
    legend: Sequence[str]
    """In the colours of the first lines."""


def plot(
    series: Sequence[Series],
    *,
    title: str,
    until: float,
    unit: Callable[[float], str],
    most: float | None = None,
    timed: bool = True,
) -> Plot | None:
    """A plot and its legend; None where no series has a point.

    Args:
        until: where a time axis ends; it begins at 0.
        unit: how a number of the vertical axis is written.
        most: where that axis ends at least.
        timed: the horizontal axis is in seconds, and where nothing was measured for long there is no line.
    """
    given = [each for each in series if each.points]
    if not given:
        return None
    values = [value for each in given for _, value in each.points]
    low, high = min(0.0, *values), max(values + ([most] if most is not None else []))
    ticks = nice_ticks(low, high if high > low else low + 1.0)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    until = max(until if timed else 0.0, *(each.points[-1][0] for each in given)) or 1.0

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at / until))

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))

    of_axis, name = (3600, " h") if until >= 7200 else (60, " min") if until >= 120 else (1, " s")
    if not timed:
        of_axis, name = 1, ""

    def time_tick(number: float) -> Tick:
        at = x(number * of_axis)
        anchor = "start" if number == 0 else "middle" if at < WIDTH - RIGHT - 20 else "end"
        return Tick(at=at, label=f"{number:g}{name}", anchor=anchor)

    many = len(given) > COLOURS
    lines = [
        Line(name=each.name, style="faint" if many else f"s{index}", path=_path(each.points, x, y, gaps=timed))
        for index, each in enumerate(given)
    ]
    if many:
        lines.append(Line(name="mean", style="s0", path=_path(_mean(given), x, y, gaps=timed)))
    return Plot(
        title=title,
        values=[Tick(at=y(tick), label=unit(tick)) for tick in ticks],
        times=[time_tick(each) for each in nice_ticks(0.0, until / of_axis) if each * of_axis <= until],
        lines=lines,
        legend=_legend(given, unit=unit, many=many),
    )


def _legend(lines: Sequence[Series], *, unit: Callable[[float], str], many: bool) -> list[str]:
    if many:
        return [f"mean of {len(lines)}: {unit(_average(_mean(lines)))}"]
    items = []
    for each in lines:
        values = [value for _, value in each.points]
        average, most, last = unit(_average(each.points)), unit(max(values)), unit(values[-1])
        items.append(f"{each.name}: {average} on average, {most} at most, {last} at the end")
    return items


def _average(points: Sequence[tuple[float, float]]) -> float:
    return sum(value for _, value in points) / len(points)


def _path(
    points: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float], *, gaps: bool
) -> str:
    parts = []
    for piece in _pieces(points) if gaps else [points]:
        most = max(2, _MOST_POINTS * len(piece) // len(points))
        drawn = [f"{x(at):.1f},{y(value):.1f}" for at, value in thinned(piece, most)]
        if len(drawn) == 1:
            # A point alone has no length; with round ends it is a dot.
            drawn.append(drawn[0])
        parts.append("M" + "L".join(drawn))
    return "".join(parts)


def _pieces(points: Sequence[tuple[float, float]]) -> list[Sequence[tuple[float, float]]]:
    """The stretches between which nothing was measured: there was no node."""
    if len(points) < 2:
        return [points]
    steps = [after[0] - before[0] for before, after in itertools.pairwise(points)]
    limit = max(_GAP_SECONDS, _GAP_TIMES * median(steps))
    cuts = [0, *(index + 1 for index, step in enumerate(steps) if step > limit), len(points)]
    return [points[start:end] for start, end in itertools.pairwise(cuts)]


def _mean(lines: Sequence[Series]) -> list[tuple[float, float]]:
    """Of lines whose points are at nearly the same times; some may begin later, or have gaps."""
    longest = max(lines, key=lambda each: len(each.points)).points
    span = longest[-1][0] - longest[0][0]
    step = span / (len(longest) - 1) if span > 0 else 1.0
    slots: dict[int, list[tuple[float, float]]] = {}
    for each in lines:
        for at, value in each.points:
            slots.setdefault(round(at / step), []).append((at, value))
    return [(_average([(0.0, at) for at, _ in slots[slot]]), _average(slots[slot])) for slot in sorted(slots)]


def nice_ticks(low: float, high: float, *, about: int = 4) -> list[float]:
    """Round numbers from at most `low` to at least `high`: steps of 1, 2, 2.5 or 5 times a power of ten."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
