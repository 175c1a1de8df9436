"""The screen of `hvdcloud top`: its lines, and how many of them a terminal of any size shows. Pure."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.runs.data import progress
from hvdcloud.runs.state import ranks_text
from hvdcloud.units import counted, dollars, seconds
from hvdcloud.visible import as_left, visible

if TYPE_CHECKING:
    from rich.text import Text

    from hvdcloud.lifecycle.top import NodeView, RunView, View

BAR = 12
SCROLLBAR = 1
"""Columns beside what scrolls."""
_NAME, _STATE = 16, 9
_WITHOUT_BAR = 74  # Columns of a node's line without its bar.
_WIDE = 92  # From this width on more is shown.
_MOST_EVENTS = 4
_LEAST_LOG = 3
_GOOD, _BAD, _SOFT, _STRONG = "green", "bold red", "dim", "bold"
_RESULTS = {"succeeded": _GOOD, "failed": _BAD, "lost": _BAD, "stopped": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What the terminal has, what the user has chosen, and the message below."""

    width: int  # Columns.
    height: int  # Rows, without that of the keys.
    blocks: bool = True  # Whether the terminal has block characters.
    log: bool = True  # The log's last lines are shown.
    each_gpu: bool | None = None  # Every GPU has a line; None: where there is room for that.
    message: str = ""  # The answer to a key.


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The screen from top to bottom: no line is wider than it, and what scrolls has its height beside it."""

    head: Sequence[Text]  # Money, the run, the names of the columns.
    nodes: Sequence[Text]
    nodes_height: int
    middle: Sequence[Text]  # Events, and the log's title.
    log: Sequence[Text]
    log_height: int
    foot: Sequence[Text]  # A message.
    each_gpu: bool  # Every GPU has a line.


def draw(view: View, looks: Looks) -> Drawing:
    """The screen; its parts together are never higher than the terminal."""
    foot = _foot(view, looks)[: looks.height - 1]
    name_width = _name_width(view, looks)
    head = [_money(view, looks.width), *_run(view, looks), _line(), _columns(looks, name_width)]
    head = head[: looks.height - len(foot)]
    room = looks.height - len(head) - len(foot)
    tail_room = (_LEAST_LOG + 2 if looks.log and view.log else 0) + (3 if view.events else 0)
    nodes_room = min(room, max(1, room - tail_room))
    each_gpu = looks.each_gpu is not False
    nodes = _nodes(view, looks, name_width=name_width, each_gpu=each_gpu)
    if looks.each_gpu is None and len(nodes) > nodes_room:
        each_gpu = False
        nodes = _nodes(view, looks, name_width=name_width, each_gpu=False)
    nodes_height = min(len(nodes), nodes_room)
    room -= nodes_height
    middle = _events(view, room=min(_MOST_EVENTS, room - 2 - (_LEAST_LOG + 2 if looks.log else 0)))
    room -= len(middle)
    log: list[Text] = []
    if looks.log and view.log and room >= 3:
        middle += [_line(), _line("LOG", _SOFT)]
        log = [_line(_plain(line)) for line in view.log]
    for line in (*head, *middle, *foot):
        line.truncate(looks.width, overflow="ellipsis")
    for line in (*nodes, *log):
        line.truncate(max(1, looks.width - SCROLLBAR), overflow="ellipsis")
    return Drawing(
        head=head,
        nodes=nodes,
        nodes_height=nodes_height,
        middle=middle,
        log=log,
        log_height=room - 2 if log else 0,
        foot=foot,
        each_gpu=each_gpu,
    )


def _line(text: str = "", style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True)


def _spread(left: Text, right: str, *, width: int) -> Text:
    """A text at the left and one at the right, where both fit; else the left is cut off."""
    space = width - len(right)
    if space < 8:
        return left
    left.truncate(space - 1, overflow="ellipsis", pad=True)
    return left.append(f" {right}")


def _money(view: View, width: int) -> Text:
    line = _line()
    line.append(view.name, style=_STRONG)
    if view.gone or not view.whole:
        line.append("  GONE" if view.gone else "  NOT WHOLE", style=_BAD)
    line.append(f"  {view.provider}, {counted(len(view.nodes), 'node')}, {seconds(view.age_seconds)}")
    return _spread(line, cost_text(view), width=width)


def cost_text(view: View) -> str:
    """`$0.92/h, $0.31 so far, at worst $26.20`; shorter where nothing costs."""
    if not view.dollars_per_hour and not view.dollars_so_far:
        return "costs nothing"
    worst = "no end to it" if view.worst_case_dollars is None else f"at worst {dollars(view.worst_case_dollars)}"
    return f"{dollars(view.dollars_per_hour)}/h, {dollars(view.dollars_so_far)} so far, {worst}"


# --- the run --------------------------------------------------------------------------------------------------------


def _run(view: View, looks: Looks) -> list[Text]:
    run = view.run
    if run is None:
        return [_line("no run yet; hvdcloud run starts one", _SOFT)]
    first = _line("run ")
    first.append(run.run).append("  ").append(run.state, style=_RESULTS.get(run.state, "cyan"))
    first.append(f"  {seconds(run.seconds)}, ")
    if run.world == 0 and run.state == "running":
        first.append(f"0 of {run.ranks} ranks: waits for nodes", style=_BAD)
    else:
        missing = run.world is not None and run.world < run.ranks
        first.append(ranks_text(ranks=run.ranks, now=run.world), style="yellow" if missing else "")
    if run.restarts:
        first.append(f", {counted(run.restarts, 'restart')}")
    if run.checkpoint_files is not None:
        first.append(f", {run.checkpoint_files} checkpoint files")
    lines = [first]
    if run.reason:
        lines.append(_line(run.reason, _BAD))
    if second := _progress(run, looks):
        lines.append(second)
    if run.slow_ranks is not None:
        lines.append(_line(run.slow_ranks.text, "yellow"))
    return lines


def _progress(run: RunView, looks: Looks) -> Text | None:
    line = _line()
    at = run.position
    if at is not None:
        line.append(f"{at.unit} {at.number:,}")
        if at.total:
            share, width = at.number / at.total, 24 if looks.width >= _WIDE else BAR
            line.append(f"/{at.total:,}  ").append_text(bar(share, width=width, blocks=looks.blocks))
            line.append(f" {share:.0%}")
    for name, value in run.numbers.items():
        line.append("   " if line.plain else "")
        shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        line.append(f"{shown} {name}" if "/" in name else f"{name} {shown}")
    return line if line.plain else None


def bar(share: float, *, width: int, blocks: bool = True) -> Text:
    """A bar that is full at 1."""
    share = min(1.0, max(0.0, share))
    line = _line()
    drawn = "#" * round(share * width)
    if blocks:
        full, rest = divmod(round(share * width * 8), 8)
        drawn = "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")
    line.append(drawn, style="cyan")
    return line.append(("░" if blocks else ".") * (width - len(drawn)), style=_SOFT)


# --- nodes ----------------------------------------------------------------------------------------------------------


def _name_width(view: View, looks: Looks) -> int:
    """Columns for names: as many as the longest has, where the terminal has them."""
    longest = max((len(node.name) for node in view.nodes), default=0)
    return min(max(_NAME, longest), _NAME + max(0, looks.width - _WIDE))


def _columns(looks: Looks, name_width: int) -> Text:
    names = f"{'NODE':<{name_width}} {'STATE':<{_STATE}}{'CPU':<{_bar_width(looks) + 6}} "
    return _line(f"{names}{'MEMORY':<14} {'IN / OUT':<16} TO UPLOAD", _SOFT)


def _bar_width(looks: Looks) -> int:
    """Columns that the others leave to a node's bar."""
    return min(BAR, max(0, looks.width - SCROLLBAR - _WITHOUT_BAR))


def _nodes(view: View, looks: Looks, *, name_width: int, each_gpu: bool) -> list[Text]:
    """A line per node, and one per GPU or one for all GPUs of a node."""
    lines: list[Text] = []
    for node in view.nodes:
        lines += _node_lines(node, looks, name_width=name_width, each_gpu=each_gpu)
    return lines


def _node_lines(node: NodeView, looks: Looks, *, name_width: int, each_gpu: bool) -> list[Text]:
    line = _line(f"{_short(node.name, name_width):<{name_width}} ")
    if node.state != "running":
        line.append(node.state, style=_BAD)
        return _with_member([line], node)
    line.append(f"{'running' if node.silent is None else 'silent':<{_STATE}}")
    if node.silent is not None:
        line.append(f"no answer for {node.silent:.0f} s", style=_BAD)
        return _with_member([line.append(f"  {node.trouble}", style=_SOFT) if node.trouble else line], node)
    sample = node.sample
    if not sample:
        line.append(node.trouble or "asking …", style=_BAD if node.trouble else _SOFT)
        return _with_member([line], node)
    cpu = sample.get("cpu")
    line.append_text(_line(" " * (_bar_width(looks) + 7)) if cpu is None else _utilisation(cpu, looks))
    line.append(f"{_of(sample.get('memory'), sample.get('memory_total')):<14} ")
    received, sent = sample.get("received"), sample.get("sent")
    rates = "" if received is None or sent is None else f"{received / 1e6:.1f}/{sent / 1e6:.1f} MB/s"
    line.append(f"{rates:<16} ")
    waiting = sample.get("waiting")
    if waiting is not None:
        line.append(f"{waiting}", style="yellow" if waiting else "")
    lines = [line]
    gpus: list[dict[str, Any]] = sample.get("gpus") or []
    if gpus and each_gpu:
        lines += [_gpu_line(f"  GPU {gpu.get('index', '?')}".ljust(name_width + 1), [gpu], looks) for gpu in gpus]
    elif gpus:
        lines.append(_gpu_line(f"  {len(gpus)} GPUs".ljust(name_width + 1), gpus, looks))
    elif node.trouble:
        lines.append(_line(f"  {node.trouble}", "yellow"))
    return _with_member(lines, node)


def _with_member(lines: list[Text], node: NodeView) -> list[Text]:
    """Add the node's state in its elastic run, unless it takes part, and how far its data are."""
    if node.data is not None and not node.data.ready:
        lines.append(_line(f"  data: {progress(node.data)}", "yellow"))
    member = node.member
    if member is None or member.takes_part:
        return lines
    alias = f" as {member.alias}" if member.alias != member.name else ""
    why = f": {member.why}" if member.why else ""
    style = _BAD if member.has_left else "yellow"
    return [lines[0], _line("  in the run: ", _SOFT).append(f"{member.state}{alias}{why}", style=style), *lines[1:]]


def _short(name: str, width: int) -> str:
    """The name, or its end, which tells nodes apart."""
    return name if len(name) <= width else "…" + name[1 - width :]


def _gpu_line(name: str, gpus: Sequence[Mapping[str, Any]], looks: Looks) -> Text:
    """One GPU or several: their mean utilisation, their memory and power together, the hottest one's temperature."""

    def known(key: str) -> list[float]:
        return [float(gpu[key]) for gpu in gpus if gpu.get(key) is not None]

    busy, memory, heat, power = known("utilization"), known("memory"), known("temperature"), known("power")
    line = _line(name + " " * _STATE)
    line.append_text(_utilisation(sum(busy) / len(busy) if busy else None, looks))
    line.append(f"{_of(sum(memory) if memory else None, sum(known('memory_total'))):<14} ")
    if heat:
        line.append(f"{max(heat):.0f} °C", style=_BAD if max(heat) >= 90 else "").append("  ")
    if power:
        line.append(f"{sum(power):.0f} W")
    return line


def _utilisation(value: float | None, looks: Looks) -> Text:
    if value is None:
        return _line(f"{'-':<{_bar_width(looks) + 7}}")
    return bar(value / 100, width=_bar_width(looks), blocks=looks.blocks).append(f" {value:3.0f} % ")


def _of(part: float | None, total: float | None) -> str:
    return "" if part is None or not total else f"{part / 1e9:.1f}/{total / 1e9:.1f} GB"


# --- what happened, what it says ------------------------------------------------------------------------------------


def _events(view: View, *, room: int) -> list[Text]:
    if not view.events or room < 1:
        return []
    lines = [_line(), _line("EVENTS", _SOFT)]
    for at, what in view.events[-room:]:
        line = _line(time.strftime("%H:%M:%S", time.localtime(at)), _SOFT)
        lines.append(_line().append_text(line).append("  ").append(_plain(what)))
    return lines


@functools.lru_cache(maxsize=1024)
def _plain(text: str) -> str:
    """Without what would act on the screen; of a line that was drawn over itself, its last state."""
    return visible(as_left(text).expandtabs(4), lines=False)


def _foot(view: View, looks: Looks) -> list[Text]:
    if looks.message:
        return [_line(looks.message, "reverse")]
    return [_line(view.notice, "yellow")] if view.notice else []
