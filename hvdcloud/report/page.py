"""A run's report: one HTML page that needs nothing else, no network and no script. Pure.

Every text in it has gone through `markup.text`: what a log says stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import partial
from html import escape
from importlib import resources
from typing import Any

from hvdcloud import __version__
from hvdcloud.report import changes
from hvdcloud.report.markup import text
from hvdcloud.report.metrics import Series, read_metrics
from hvdcloud.report.plot import plot
from hvdcloud.report.record import RunRecord
from hvdcloud.runs.state import number
from hvdcloud.units import dollars, seconds, size

LAST_LINES = 100
MOST_CHECKPOINTS = 50
_LONGEST_LINE = 500
_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(record: RunRecord) -> str:
    """The whole page."""
    style = resources.files("hvdcloud.report").joinpath("page.css").read_text(encoding="utf-8")
    title = f"{record.cluster}: run {record.run}"
    kind = {"succeeded": "good", "failed": "bad", "lost": "bad"}.get(outcome(record), "so")
    badge = f"<p class='badge {kind}'>{text(outcome(record))}</p>"
    body = [
        f"<header><p class='over'>{text(record.cluster)}</p><h1>Run {text(record.run)}</h1>{badge}</header>",
        _section("Summary", _summary(record)),
        _section("Over time", _plots(record)),
        _section("Events", _events(record)),
        _section("Checkpoints", _checkpoints(record)),
        _section("The log's last lines", _log(record)),
        f"<footer>Made by hvdcloud {text(__version__)} from {text(record.bucket)}. Costs are estimates by the price "
        "table; processors, memory and network are those of each node's whole machine.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta name="color-scheme" content="light dark"/><title>{text(title)}</title><style>{style}</style></head>\n'
        f"<body><main>{chr(10).join(filter(None, body))}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def outcome(record: RunRecord) -> str:
    """succeeded | failed | stopped | lost | not known to have ended."""
    return record.state.result or "not known to have ended"


def _summary(record: RunRecord) -> str:
    state, about = record.state, record.about
    provider = f" ({about.provider})" if about.provider else ""
    rows: list[tuple[str, object]] = [("Cluster", f"{record.cluster}{provider}")]
    if count := len(state.nodes) or len(record.samples):
        rows.append(("Nodes", f"{count}" + (f" of {about.machine}" if about.machine else "")))
    if state.np:
        rows.append(("Ranks", state.np))
    rows += changes.summary(record)
    given = (("GPUs", gpu_count(record)), ("Command", about.command), ("Image", about.image))
    rows += [(name, value) for name, value in given if value]
    rows.append(("Result", outcome(record) + (f", exit code {state.exit_code}" if state.exit_code else "")))
    if state.reason:
        rows.append(("Reason", state.reason))
    if record.started:
        rows.append(("Started", _moment(record.started)))
    if record.started and record.last_seen:
        rows.append(("Duration" if record.state.ended else "Seen for", seconds(record.last_seen - record.started)))
    rows += _costs(record)
    total = sum(entry.size for entry in record.checkpoints)
    where = "" if record.complete else "; more may be on the nodes"
    rows.append(("Checkpoints", f"{len(record.checkpoints)} file(s), {size(total)}{where}"))
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in rows)
    return f"<dl>{items}</dl>"


def _costs(record: RunRecord) -> list[tuple[str, object]]:
    rate = record.about.dollars_per_hour
    if rate is None:
        return []
    if not rate:
        return [("Cost", "nothing")]
    rows: list[tuple[str, object]] = []
    if record.started and record.last_seen:
        spent = rate * (record.last_seen - record.started) / 3600
        rows.append(("Cost of this run", f"{dollars(spent)} at {dollars(rate)}/h"))
        if total := _total_before(record):
            rows.append(("Cost of the cluster until then", dollars(total + spent)))
    if worst := record.about.worst_case_dollars:
        rows.append(("At worst it would have cost", dollars(worst)))
    return rows


def _total_before(record: RunRecord) -> float:
    """What the cluster had cost when the run began."""
    about = record.about
    late = max(0.0, (record.started or 0.0) - about.seen) if about.seen else 0.0
    return (about.dollars_before or 0.0) + (about.dollars_per_hour or 0.0) * late / 3600


def gpu_count(record: RunRecord) -> int:
    """GPUs that any sample has seen."""
    return len({(node, gpu["index"]) for node, _, gpu in _gpus(record)})


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _plots(record: RunRecord) -> str:
    started, last = record.started, record.last_seen
    if started is None or last is None:
        return "<p>No samples of this run are in the bucket.</p>"
    until = max(1.0, last - started)
    marks = changes.marks(record, started=started, until=until)
    metrics = read_metrics(
        record.log, samples=record.samples.get(0, ()), started=record.started, elastic=changes.changes_world(record)
    )
    draw = partial(plot, until=until, marks=marks)
    world = changes.world_series(record, started=started, until=until)
    speeds = changes.by_world(record, metrics.series if metrics.timed else (), started=started, until=until)
    figures = [draw(world, title="World size", unit="{:.0f}".format, course=True, whole=True, below=speeds)]
    printed = []
    for each in metrics.series:
        title = f"{each.name[:1].upper()}{each.name[1:]}" + ("" if metrics.timed else ", line by line")
        is_rate = "/" in each.name
        gaps = is_rate and metrics.timed and changes.changes_world(record)
        printed.append(draw([each], title=title, unit=_plain, timed=metrics.timed, course=not is_rate, gaps=gaps))
    of_nodes = partial(_node_series, record, started)
    if with_gpus := gpu_count(record) > 0:
        of_gpus = partial(_gpu_series, record, started)
        memory = (number(gpu.get("memory_total")) for _, _, gpu in _gpus(record))
        largest = max((size for size in memory if size is not None), default=0.0)
        figures += [
            draw(of_gpus("utilization"), title="GPU utilisation", unit="{:.0f} %".format, most=100.0, gaps=True),
            draw(of_gpus("memory"), title="GPU memory", unit=_bytes, most=largest, gaps=True),
            draw(of_gpus("temperature"), title="GPU temperature", unit="{:.0f} °C".format, gaps=True),
            draw(of_gpus("power"), title="GPU power", unit="{:.0f} W".format, gaps=True),
            *printed,
        ]
    traffic = [*of_nodes("sent", " sends"), *of_nodes("received", " receives")]
    figures += [
        draw(of_nodes("cpu"), title="CPU utilisation", unit="{:.0f} %".format, most=100.0, gaps=True),
        draw(of_nodes("memory"), title="Memory in use", unit=_bytes, gaps=True),
        draw(traffic, title="Network between the nodes", unit=lambda value: f"{_bytes(value)}/s", gaps=True),
    ]
    if not with_gpus:
        figures += printed
    if rate := record.about.dollars_per_hour:
        before = _total_before(record)
        line = Series(name="the cluster", points=[(0.0, before), (until, before + rate * until / 3600)])
        figures.append(draw([line], title="Cost", unit="${:,.2f}".format, course=True))
    trouble = {str(row["trouble"]) for rows in record.samples.values() for row in rows if "trouble" in row}
    notes = "".join(f"<p class='note'>{text(each)}</p>" for each in sorted(trouble)[:5])
    return notes + changes.key_of(marks) + f"<div class='plots'>{''.join(figures)}</div>"


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


def _bytes(value: float) -> str:
    """To three digits, so that it fits beside an axis."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _events(record: RunRecord) -> str:
    found: list[tuple[float, str, str]] = []
    if record.state.started is not None:
        found.append((record.state.started, "started", ""))
    found += [(event.at, event.text, changes.MARKED.get(event.name, "")) for event in record.events]
    for rank in record.state.ranks:
        if rank.ended is not None and rank.exit_code:
            found.append((rank.ended, f"rank {rank.rank} on {rank.node} ended with {rank.exit_code}", ""))
    if record.state.ended is not None:
        found.append((record.state.ended, outcome(record), ""))
    if not found:
        return ""
    start = record.started or found[0][0]
    rows = "".join(
        f"<tr><td class='number'>{text(_moment(at))}</td><td class='number'>+{text(seconds(max(0.0, at - start)))}</td>"
        f"<td><i class='dot {kind}'></i>{text(what)}</td></tr>"
        for at, what, kind in sorted(found, key=lambda row: row[0])
    )
    head = "<tr><th>When</th><th>Into the run</th><th>What</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _checkpoints(record: RunRecord) -> str:
    if not record.checkpoints:
        return "<p>None was written.</p>"
    shown = record.checkpoints[-MOST_CHECKPOINTS:]
    left_out = len(record.checkpoints) - len(shown)
    note = f"<p>The newest {len(shown)} of {len(record.checkpoints)}.</p>" if left_out else ""
    rows = "".join(
        f"<tr><td>{text(entry.name)}</td><td class='number'>{text(size(entry.size))}</td>"
        f"<td class='number'>{text(_moment(entry.modified))}</td><td class='number'>{text(entry.crc32c)}</td></tr>"
        for entry in shown
    )
    head = "<tr><th>File</th><th>Size</th><th>Written</th><th>CRC32C</th></tr>"
    return f"{note}<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _log(record: RunRecord) -> str:
    if not record.log:
        why = "the run has not ended, or its head was lost before it could keep it"
        return f"<p>The log is not in the bucket: {why}.</p>"
    lines = record.log.decode(errors="replace").rstrip("\n").split("\n")
    shown = [_line(line) for line in lines[-LAST_LINES:]]
    before = len(lines) - len(shown)
    note = f"<p>{before:,} lines are before these: hvdcloud logs {text(record.run)} --name {text(record.cluster)}</p>"
    body = "\n".join(text(line) for line in shown)
    return f"{note if before else ''}<pre>{body}</pre>"


def _line(line: str) -> str:
    """As a terminal would leave it: without colours, and of what was drawn over itself the last."""
    prefix, bracket, rest = line.partition("] ")
    if bracket:
        line = f"{prefix}] {rest.rstrip(chr(13)).rpartition(chr(13))[2]}"
    line = _ANSI.sub("", line)
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"
