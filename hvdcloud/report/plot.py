"""Line plots as SVG that stands in an HTML page: colours are the page's CSS classes, text is escaped. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hvdcloud.report.markup import text
from hvdcloud.report.metrics import Series, thinned

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 24
COLOURS = 8
"""How many lines can be told apart; more of them are drawn faintly, and their mean over them."""
_MOST_POINTS = 600


def plot(
    series: Sequence[Series],
    *,
    name: str,
    until: float,
    unit: Callable[[float], str],
    most: float | None = None,
    timed: bool = True,
    course: bool = False,
) -> str:
    """A plot with its legend.

    Args:
        series: at least one.
        name: what it shows, for those who cannot see it.
        until: where the horizontal axis ends; it begins at 0.
        unit: how a number of the vertical axis is written.
        most: where that axis ends at least.
        timed: the horizontal axis is in seconds.
        course: it is the end that counts, not the average.
    """
    lines = [each for each in series if each.points]
    if not lines:
        return ""
    values = [value for each in lines for _, value in each.points]
    low, high = min(0.0, *values), max(values + ([most] if most is not None else []))
    ticks = nice_ticks(low, high if high > low else low + 1.0)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    until = max(until, *(each.points[-1][0] for each in lines)) or 1.0

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at / until))

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(name)}">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{text(unit(tick))}</text>')
    for tick in time_ticks(until) if timed else nice_ticks(0.0, until):
        anchor = "start" if tick == 0 else "middle" if x(tick) < WIDTH - RIGHT - 20 else "end"
        label = short_time(tick) if timed else f"{tick:g}"
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{text(label)}</text>')
    many = len(lines) > COLOURS
    for index, each in enumerate(lines):
        style = "faint" if many else f"s{index}"
        parts.append(
            f'<path class="line {style}" d="{_path(each.points, x, y)}"><title>{text(each.name)}</title></path>'
        )
    if many:
        mean = _mean(lines)
        parts.append(f'<path class="line s0" d="{_path(mean, x, y)}"><title>mean</title></path>')
    parts.append("</svg>")
    return "".join(parts) + _legend(lines, unit=unit, many=many, course=course)


def _legend(lines: Sequence[Series], *, unit: Callable[[float], str], many: bool, course: bool) -> str:
    if many:
        last = _mean(lines)
        said = f"mean of {len(lines)}: {unit(_average(last))}"
        return f'<p class="legend"><span><i class="k0"></i>{text(said)}</span></p>'
    items = []
    for index, each in enumerate(lines):
        values = [value for _, value in each.points]
        level = f"{unit(values[-1])} at the end" if course else f"{unit(_average(each.points))} on average"
        said = f"{each.name}: {level}, {unit(max(values))} at most"
        items.append(f'<span><i class="k{index}"></i>{text(said)}</span>')
    return f'<p class="legend">{"".join(items)}</p>'


def _average(points: Sequence[tuple[float, float]]) -> float:
    return sum(value for _, value in points) / len(points)


def _path(points: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    drawn = [f"{x(at):.1f},{y(value):.1f}" for at, value in thinned(points, _MOST_POINTS)]
    if len(drawn) == 1:
        # A point alone has no length; with round ends it is a dot.
        drawn.append(drawn[0])
    return "M" + "L".join(drawn)


def _mean(lines: Sequence[Series]) -> list[tuple[float, float]]:
    """Of lines whose points are at nearly the same times."""
    length = max(len(each.points) for each in lines)
    mean = []
    for index in range(length):
        there = [each.points[index] for each in lines if index < len(each.points)]
        mean.append((_average([(0.0, at) for at, _ in there]), _average(there)))
    return mean


def nice_ticks(low: float, high: float, *, about: int = 4) -> list[float]:
    """Round numbers from at most `low` to at least `high`: steps of 1, 2, 2.5 or 5 times a power of ten."""
    raw = (high - low) / about
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
