"""The screen of `hvdcloud top`: lines for a terminal of any size. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.runs.state import ranks_text
from hvdcloud.units import dollars, seconds

if TYPE_CHECKING:
    from rich.text import Text

    from hvdcloud.lifecycle.top import NodeView, RunView, View

BAR = 12
_NAME, _STATE = 16, 9
_WIDE = 92  # From this width on more is shown.
_MOST_EVENTS = 4
_LEAST_LOG = 3
_GOOD, _BAD, _SOFT, _STRONG = "green", "bold red", "dim", "bold"
_RESULTS = {"succeeded": _GOOD, "failed": _BAD, "lost": _BAD, "stopped": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What the terminal has, what the user has chosen, and the message below."""

    width: int  # Columns.
    height: int  # Rows.
    blocks: bool = True  # Whether the terminal has block characters.
    log: bool = True  # The log's last lines are shown.
    message: str = ""  # Instead of the list of keys.


def draw(view: View, looks: Looks) -> list[Text]:
    """The screen's lines: never more than its height, and none wider than it."""
    top = [_money(view, looks.width), *_run(view, looks), _line()]
    foot = [_foot(view, looks)]
    room = looks.height - len(top) - len(foot)
    tail_room = (_LEAST_LOG + 2 if looks.log and view.log else 0) + (2 if view.events else 0)
    nodes = _nodes(view, looks, room=max(2, room - tail_room))
    room -= len(nodes)
    events = _events(view, room=min(_MOST_EVENTS, room - 2 - (_LEAST_LOG + 2 if looks.log else 0)))
    log = _log(view, looks, room=room - len(events))
    lines = [*top, *nodes, *events, *log][: looks.height - 1]
    lines += [*[_line()] * (looks.height - 1 - len(lines)), *foot]
    for line in lines:
        line.truncate(looks.width, overflow="ellipsis")
    return lines


def _line(text: str = "", style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True)


def _spread(left: Text, right: str, *, width: int, style: str = "") -> Text:
    """A text at the left and one at the right, where both fit; else the left is cut off."""
    space = width - len(right)
    if space < 8:
        return left
    left.truncate(space - 1, overflow="ellipsis", pad=True)
    return left.append(" ").append(right, style=style)


def _money(view: View, width: int) -> Text:
    line = _line()
    line.append(view.name, style=_STRONG)
    if view.gone or not view.whole:
        line.append("  GONE" if view.gone else "  NOT WHOLE", style=_BAD)
    count = len(view.nodes)
    line.append(f"  {view.provider}, {count} node{'s' if count != 1 else ''}, {seconds(view.age_seconds)}")
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
        first.append(f", {run.restarts} restart{'s' if run.restarts != 1 else ''}")
    if run.checkpoint_files is not None:
        first.append(f", {run.checkpoint_files} checkpoint files")
    lines = [first]
    if run.reason:
        lines.append(_line(run.reason, _BAD))
    if second := _progress(run, looks):
        lines.append(second)
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


def _nodes(view: View, looks: Looks, *, room: int) -> list[Text]:
    """A line per node and one per GPU; where there is no room for that, one per node for all its GPUs."""
    whole = [_node_lines(node, looks, each_gpu=True) for node in view.nodes]
    if sum(map(len, whole)) + 1 > room:
        whole = [_node_lines(node, looks, each_gpu=False) for node in view.nodes]
    state = f"{'STATE':<{_STATE}}" if looks.width >= _WIDE else ""
    lines = [_line(f"{'NODE':<{_NAME}} {state}{'CPU':<{BAR + 6}} {'MEMORY':<14} {'IN / OUT':<16} WAITING", _SOFT)]
    for index, each in enumerate(whole):
        left = len(whole) - index
        if len(lines) + len(each) + (1 if left > 1 else 0) > room and left:
            lines.append(_line(f"… and {left} more; a taller terminal shows them", _SOFT))
            break
        lines += each
    return lines


def _node_lines(node: NodeView, looks: Looks, *, each_gpu: bool) -> list[Text]:
    line = _line(f"{_short(node.name):<{_NAME}} ")
    if node.state != "running":
        line.append(node.state, style=_BAD)
        return _with_member([line], node)
    if looks.width >= _WIDE:
        line.append(f"{'running' if node.silent is None else 'silent':<{_STATE}}")
    if node.silent is not None:
        line.append(f"no answer for {node.silent:.0f} s", style=_BAD)
        return _with_member([line.append(f"  {node.trouble}", style=_SOFT) if node.trouble else line], node)
    sample = node.sample
    if not sample:
        line.append(node.trouble or "asking …", style=_BAD if node.trouble else _SOFT)
        return _with_member([line], node)
    cpu = sample.get("cpu")
    line.append_text(_line(" " * (BAR + 6)) if cpu is None else _utilisation(cpu, looks))
    line.append(f"{_of(sample.get('memory'), sample.get('memory_total')):<14} ")
    rates = f"{sample['received'] / 1e6:.1f}/{sample['sent'] / 1e6:.1f} MB/s" if "received" in sample else ""
    line.append(f"{rates:<16} ")
    waiting = sample.get("waiting")
    if waiting is not None:
        line.append(f"{waiting}", style="yellow" if waiting else "")
    lines = [line]
    gpus: list[dict[str, Any]] = sample.get("gpus") or []
    if gpus and each_gpu:
        lines += [_gpu_line(f"  GPU {gpu.get('index', '?')}", [gpu], looks) for gpu in gpus]
    elif gpus:
        lines.append(_gpu_line(f"  {len(gpus)} GPUs", gpus, looks))
    elif node.trouble:
        lines.append(_line(f"  {node.trouble}", "yellow"))
    return _with_member(lines, node)


def _with_member(lines: list[Text], node: NodeView) -> list[Text]:
    """With the node's state in its elastic run, unless it takes part."""
    member = node.member
    if member is None or member.takes_part:
        return lines
    alias = f" as {member.alias}" if member.alias != member.name else ""
    why = f": {member.why}" if member.why else ""
    style = _BAD if member.has_left else "yellow"
    return [lines[0], _line("  in the run: ", _SOFT).append(f"{member.state}{alias}{why}", style=style), *lines[1:]]


def _short(name: str) -> str:
    """The name, or its end, which tells nodes apart."""
    return name if len(name) <= _NAME else "…" + name[1 - _NAME :]


def _gpu_line(name: str, gpus: Sequence[Mapping[str, Any]], looks: Looks) -> Text:
    """One GPU or several: their mean utilisation, their memory and power together, the hottest one's temperature."""

    def known(key: str) -> list[float]:
        return [float(gpu[key]) for gpu in gpus if gpu.get(key) is not None]

    busy, memory, heat, power = known("utilization"), known("memory"), known("temperature"), known("power")
    line = _line(f"{name:<{_NAME}} " + " " * _STATE * (looks.width >= _WIDE))
    line.append_text(_utilisation(sum(busy) / len(busy) if busy else None, looks))
    line.append(f"{_of(sum(memory) if memory else None, sum(known('memory_total'))):<14} ")
    if heat:
        line.append(f"{max(heat):.0f} °C", style=_BAD if max(heat) >= 90 else "").append("  ")
    if power:
        line.append(f"{sum(power):.0f} W")
    return line


def _utilisation(value: float | None, looks: Looks) -> Text:
    if value is None:
        return _line(f"{'-':<{BAR + 7}}")
    return bar(value / 100, width=BAR, blocks=looks.blocks).append(f" {value:3.0f} % ")


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


def _log(view: View, looks: Looks, *, room: int) -> list[Text]:
    if not looks.log or room < 3 or not view.log:
        return []
    return [_line(), _line("LOG", _SOFT), *(_line(_plain(line)) for line in view.log[-(room - 2) :])]


def _plain(text: str) -> str:
    """Without what would move the cursor or colour the screen; of a line that was drawn over itself, its last state."""
    from rich.text import Text

    prefix, bracket, rest = text.partition("] ")
    if bracket:
        text = f"{prefix}] {rest.rstrip(chr(13)).rpartition(chr(13))[2]}"
    plain = Text.from_ansi(text).plain
    return "".join(char if char.isprintable() else " " for char in plain.expandtabs(4))


def _foot(view: View, looks: Looks) -> Text:
    if looks.message:
        return _line(looks.message, "reverse")
    if view.notice:
        return _line(view.notice, "yellow")
    keys = ["q quits", f"l {'hides' if looks.log else 'shows'} the log"]
    if view.run is not None and view.run.goes_on:
        keys.append("s stops the run")
    return _line("   ".join(keys), _SOFT)
