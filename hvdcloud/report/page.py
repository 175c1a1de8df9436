"""A run's report: one HTML page that needs nothing else, no network and no script. Pure.

What is in it is worked out here; page.html.jinja says how it looks, and escapes every text: what a log says stays text.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hvdcloud import __version__
from hvdcloud.report.metrics import Metrics, MetricsReader, Series
from hvdcloud.report.phases import Phase, phases_text
from hvdcloud.report.plot import Plot, plot
from hvdcloud.report.record import RunRecord
from hvdcloud.runs import data_progress
from hvdcloud.runs.failure import told
from hvdcloud.runs.log_lines import Lines
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import number
from hvdcloud.runs.slow_ranks import slow_ranks_of
from hvdcloud.units import counted, dollars, seconds, size
from hvdcloud.visible import as_left, visible

if TYPE_CHECKING:
    from jinja2 import Environment

LAST_LINES = 100
MOST_CHECKPOINTS = 50
_LONGEST_LINE = 500
# Neither HTML nor XML has a way to write these.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """What the page has of the log."""

    metrics: Metrics
    reason: str
    """Why the run did not succeed: of one that failed, what the first rank to fail printed."""
    before: int
    """How many lines come before the last ones."""
    last: str
    """The last lines; empty without a log."""


@cache
def templates() -> Environment:
    """The page's templates; they escape every value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hvdcloud.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"moment": _moment, "place": "{:.1f}".format, "seconds": seconds, "size": size}
    return environment


def page(record: RunRecord, parts: Sequence[Phase] = ()) -> str:
    """The whole page; `parts`: the phases of the run."""
    log = _read_log(record)
    troubles = {str(row["trouble"]) for rows in record.samples.values() for row in rows if "trouble" in row}
    template = templates().get_template("page.html.jinja")
    html = template.render(
        record=record,
        version=__version__,
        outcome=outcome(record),
        badge={"succeeded": "good", "failed": "bad", "lost": "bad"}.get(outcome(record), "so"),
        summary=_summary(record, log, parts),
        troubles=sorted(troubles)[:5],
        plots=_plots(record, log.metrics),
        events=_events(record),
        waits=record.state.waits,
        checkpoints=record.checkpoints[-MOST_CHECKPOINTS:],
        log_before=log.before,
        log=log.last,
    )
    return visible(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", html))


def outcome(record: RunRecord) -> str:
    """succeeded | failed | stopped | lost | not known to have ended."""
    return record.state.result or "not known to have ended"


def _read_log(record: RunRecord) -> _Log:
    """All that the page says of the log, read once and line by line."""
    numbers = MetricsReader(samples=record.samples.get(0, ()), started=record.started)
    reader, lines = LogReader(elastic=record.changes_world), Lines()
    last: deque[bytes] = deque(maxlen=LAST_LINES)
    count = 0
    for line in lines.of(record.log):
        if values := reader.take(line):
            numbers.add(values, end=lines.end)
        last.append(line)
        count += 1
    while last and not last[-1]:
        last.pop()
        count -= 1
    failure = reader.failure(record.state)
    return _Log(
        metrics=numbers.metrics(),
        reason=failure.reason if failure is not None else told(record.state),
        before=count - len(last),
        last="\n".join(_line(line.decode(errors="backslashreplace")) for line in last),
    )


def _summary(record: RunRecord, log: _Log, parts: Sequence[Phase]) -> list[tuple[str, object]]:
    state, about = record.state, record.about
    provider = f" ({about.provider})" if about.provider else ""
    rows: list[tuple[str, object]] = [("Cluster", f"{record.cluster}{provider}")]
    if count := len(state.nodes) or len(record.samples):
        rows.append(("Nodes", f"{count}" + (f" of {about.machine}" if about.machine else "")))
    if state.np:
        rows.append(("Ranks", state.np))
    rows += _elastic(record)
    given = (("GPUs", gpu_count(record)), ("Command", about.command), ("Image", about.image))
    rows += [(name, value) for name, value in given if value]
    rows.append(("Result", outcome(record) + (f", exit code {state.exit_code}" if state.exit_code else "")))
    if state.reason:
        rows.append(("Reason", log.reason))
    if record.started:
        rows.append(("Started", _moment(record.started)))
    if record.started and record.last_seen:
        rows.append(("Duration" if record.state.ended else "Seen for", seconds(record.last_seen - record.started)))
    if parts:
        rows.append(("Phases", phases_text(parts)))
    if fetched := data_progress.summary(state):
        rows.append(("Data", fetched))
    if slow := slow_ranks_of(state):
        rows.append(("Slow", slow.text))
    rows += _costs(record)
    total = sum(entry.size for entry in record.checkpoints)
    where = "" if record.complete else "; more may be on the nodes"
    rows.append(("Checkpoints", f"{counted(len(record.checkpoints), 'file')}, {size(total)}{where}"))
    rows += [("Not read", why) for why in record.unread]
    return rows


def _elastic(record: RunRecord) -> list[tuple[str, object]]:
    """Of an elastic run: how far it might shrink and grow, and what came of it."""
    rows: list[tuple[str, object]] = []
    limits = record.state.elastic
    if limits is not None and limits.min is not None:
        most = f" to {limits.max} nodes" if limits.max is not None else " nodes or more"
        rows.append(("Elastic", f"{limits.min}{most}"))
    counts = Counter(event.name for event in record.events)
    named = (("lost", "lost a node"), ("preempted", "preempted"), ("joined", "node joins"))
    if happened := [f"{counts[name]} {what}" for what, name in named if counts[name]]:
        rows.append(("Nodes came and went", ", ".join(happened)))
    if again := max(record.state.restarts, counts["started again"]):
        rows.append(("ranks started again", counted(again, "time")))
    return rows


def _costs(record: RunRecord) -> list[tuple[str, object]]:
    rate = record.about.dollars_per_hour
    if rate is None:
        return []
    if not rate:
        return [("Cost", "nothing")]
    if not record.started or not record.last_seen:
        return []
    spent = rate * (record.last_seen - record.started) / 3600
    return [("Cost of this run", f"{dollars(spent)} at {dollars(rate)}/h")]


def gpu_count(record: RunRecord) -> int:
    """GPUs that any sample has seen."""
    return len({(node, gpu["index"]) for node, _, gpu in _gpus(record)})


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _plots(record: RunRecord, metrics: Metrics) -> list[Plot]:
    """Empty: nothing says when the run was, or there is no number of it."""
    started, last = record.started, record.last_seen
    if started is None or last is None:
        return []
    draw = partial(plot, until=max(1.0, last - started))
    printed = []
    for each in metrics.series:
        title = f"{each.name[:1].upper()}{each.name[1:]}" + ("" if metrics.timed else ", line by line")
        printed.append(draw([each], title=title, unit=_plain, timed=metrics.timed))
    of_nodes = partial(_node_series, record, started)
    figures: list[Plot | None] = []
    if with_gpus := gpu_count(record) > 0:
        of_gpus = partial(_gpu_series, record, started)
        memory = (number(gpu.get("memory_total")) for _, _, gpu in _gpus(record))
        largest = max((size for size in memory if size is not None), default=0.0)
        figures = [
            draw(of_gpus("utilization"), title="GPU utilisation", unit="{:.0f} %".format, most=100.0),
            draw(of_gpus("memory"), title="GPU memory", unit=size, most=largest),
            draw(of_gpus("temperature"), title="GPU temperature", unit="{:.0f} °C".format),
            draw(of_gpus("power"), title="GPU power", unit="{:.0f} W".format),
            *printed,
        ]
    traffic = [*of_nodes("sent", " sends"), *of_nodes("received", " receives")]
    figures += [
        draw(of_nodes("cpu"), title="CPU utilisation", unit="{:.0f} %".format, most=100.0),
        draw(of_nodes("memory"), title="Memory in use", unit=size),
        draw(traffic, title="Network between the nodes", unit=lambda value: f"{size(value)}/s"),
    ]
    if not with_gpus:
        figures += printed
    return [figure for figure in figures if figure is not None]


def _gpus(record: RunRecord) -> Iterable[tuple[int, float, dict[str, Any]]]:
    """Every reading of a GPU: its node, when, what."""
    for node, samples in record.samples.items():
        for sample in samples:
            found = sample.get("gpus")
            for gpu in found if isinstance(found, list) else ():
                if isinstance(gpu, dict) and isinstance(gpu.get("index"), int):
                    yield node, sample["t"], gpu


def _gpu_series(record: RunRecord, started: float, key: str) -> list[Series]:
    points: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for node, at, gpu in _gpus(record):
        if (value := number(gpu.get(key))) is not None:
            points.setdefault((node, gpu["index"]), []).append((max(0.0, at - started), value))
    named = ((f"{record.node_name(node)} GPU {index}", points[node, index]) for node, index in sorted(points))
    return [Series(name=name, points=each) for name, each in named]


def _node_series(record: RunRecord, started: float, key: str, what: str = "") -> list[Series]:
    found = []
    for node, samples in record.samples.items():
        known = [(sample["t"], value) for sample in samples if (value := number(sample.get(key))) is not None]
        points = [(max(0.0, at - started), value) for at, value in known]
        if points:
            found.append(Series(name=f"{record.node_name(node)}{what}", points=points))
    return found


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _events(record: RunRecord) -> list[tuple[float, float, str]]:
    """When it was, how many seconds into the run, and what it was; oldest first."""
    found = [(event.at, event.text) for event in record.events]
    if record.state.started is not None:
        found.insert(0, (record.state.started, "started"))
    for rank in record.state.ranks:
        if rank.ended is not None and rank.exit_code:
            found.append((rank.ended, f"rank {rank.rank} on {rank.node} ended with {rank.exit_code}"))
    if record.state.ended is not None:
        found.append((record.state.ended, outcome(record)))
    start = record.started or (found[0][0] if found else 0.0)
    return [(at, max(0.0, at - start), what) for at, what in sorted(found, key=lambda row: row[0])]


def _line(line: str) -> str:
    """As a terminal would leave it: without colours, and of what was drawn over itself the last."""
    line = as_left(line)
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"
