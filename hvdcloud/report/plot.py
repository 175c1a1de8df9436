"""Line plots as SVG inside an HTML page: colours are the page's CSS classes, text is escaped. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from hvdcloud.report.markup import text
from hvdcloud.report.metrics import Series, thinned

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 24
COLOURS = 8
"""How many lines can be told apart; more of them are drawn faintly, and their mean over them."""
_MOST_POINTS = 600
_GAP_SECONDS, _GAP_TIMES = 15.0, 4.0
"""A line has a gap where its points are so far apart, and so many times further than most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment at which something happened."""

    at: float
    """Seconds since the run began."""
    kind: str
    """How it is drawn: a CSS class."""
    name: str


def plot(
    series: Sequence[Series],
    *,
    title: str,
    until: float,
    unit: Callable[[float], str],
    most: float | None = None,
    timed: bool = True,
    course: bool = False,
    whole: bool = False,
    gaps: bool = False,
    marks: Sequence[Mark] = (),
    below: str = "",
) -> str:
    """A figure with a plot and its legend; empty where no series has a point.

    Args:
        until: where a time axis ends; it begins at 0.
        unit: how a number of the vertical axis is written.
        most: where that axis ends at least.
        timed: the horizontal axis is in seconds.
        course: it is the end that counts, not the average.
        whole: there is nothing between whole numbers.
        gaps: where nothing was measured for long there is no line.
        marks: on the time axis.
        below: HTML under the legend.
    """
    lines = [each for each in series if each.points]
    if not lines:
        return ""
    values = [value for each in lines for _, value in each.points]
    low, high = min(0.0, *values), max(values + ([most] if most is not None else []))
    ticks = nice_ticks(low, high if high > low else low + 1.0, least=1.0 if whole else 0.0)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    until = max(until if timed else 0.0, *(each.points[-1][0] for each in lines)) or 1.0

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at / until))

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{text(unit(tick))}</text>')
    for tick in time_ticks(until) if timed else nice_ticks(0.0, until):
        anchor = "start" if tick == 0 else "middle" if x(tick) < WIDTH - RIGHT - 20 else "end"
        label = short_time(tick) if timed else f"{tick:g}"
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{text(label)}</text>')
    for mark in marks if timed else ():
        at, head = f"{x(mark.at):.1f}", TOP - 5
        parts.append(
            f'<g class="mark {mark.kind}"><title>{text(mark.name)}</title>'
            f'<line x1="{at}" x2="{at}" y1="{head}" y2="{HEIGHT - BOTTOM}"/><circle cx="{at}" cy="{head}" r="3"/></g>'
        )
    many = len(lines) > COLOURS
    for index, each in enumerate(lines):
        style = "faint" if many else f"s{index}"
        drawn = _path(each.points, x, y, gaps=gaps)
        parts.append(f'<path class="line {style}" d="{drawn}"><title>{text(each.name)}</title></path>')
    if many:
        mean = _mean(lines)
        parts.append(f'<path class="line s0" d="{_path(mean, x, y, gaps=gaps)}"><title>mean</title></path>')
    legend = _legend(lines, unit=unit, many=many, course=course, whole=whole)
    caption = f"<figcaption>{text(title)}</figcaption>"
    return f"<figure>{caption}{''.join(parts)}</svg>{legend}{below}</figure>"


def _legend(lines: Sequence[Series], *, unit: Callable[[float], str], many: bool, course: bool, whole: bool) -> str:
    if many:
        said = f"mean of {len(lines)}: {unit(_average(_mean(lines)))}"
        return f'<p class="legend"><span><i class="k0"></i>{text(said)}</span></p>'
    items = []
    for index, each in enumerate(lines):
        values = [value for _, value in each.points]
        level = f"{unit(values[-1])} at the end" if course else f"{unit(_average(each.points))} on average"
        said = f"{each.name}: {level}, {unit(max(values))} at most"
        said += f", {unit(min(values))} at least" if whole else ""
        items.append(f'<span><i class="k{index}"></i>{text(said)}</span>')
    return f'<p class="legend">{"".join(items)}</p>'


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


def nice_ticks(low: float, high: float, *, about: int = 4, least: float = 0.0) -> list[float]:
    """Round numbers from at most `low` to at least `high`: steps of 1, 2, 2.5 or 5 times a power of ten; or `least`."""
    raw = max(least, (high - low) / about)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def time_ticks(until: float, *, about: int = 6) -> list[float]:
    """Times in seconds at which a clock is looked at."""
    step = next((each for each in _TIME_STEPS if until / each <= about), math.ceil(until / about / 86400) * 86400)
    return [float(at) for at in range(0, int(until) + 1, int(step))]


def short_time(value: float) -> str:
    """`0`, `45 s`, `12 min`, `1 h 30 min`."""
    if value < 120:
        return f"{value:g} s" if value else "0"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
