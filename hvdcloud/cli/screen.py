"""What `hvdcloud top` shows: its head and the rows of its table. Pure; no text in it acts on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hvdcloud.runs.data_progress import progress
from hvdcloud.runs.slow_ranks import slow_ranks_of
from hvdcloud.runs.state import ranks_present
from hvdcloud.units import counted, dollars, seconds
from hvdcloud.visible import as_left, visible

if TYPE_CHECKING:
    from hvdcloud.lifecycle.top import NodeView, RunView, View

COLUMNS = ("NODE", "STATE", "CPU", "MEMORY", "IN / OUT", "TO UPLOAD")
_MOST_TROUBLES = 4
_GOOD, _BAD, _SOFT, _WARNS = "green", "bold red", "dim", "yellow"
_RESULTS = {"succeeded": _GOOD, "failed": _BAD, "lost": _BAD, "stopped": _WARNS}


def harmless(said: str, style: str = "") -> Text:
    """Another's words in one line; of what was drawn over itself, what was left. Nothing in them is markup."""
    return Text(visible(as_left(said).expandtabs(4), lines=False), style=style)


# --- the head ---------------------------------------------------------------------------------------------------------


def head(view: View) -> Text:
    """The cluster and what it costs, the run and how far it is, and what is wrong."""
    cluster = view.cluster
    first = harmless(cluster.name, "bold")
    if view.gone or not cluster.whole:
        first.append("  GONE" if view.gone else "  NOT WHOLE", style=_BAD)
    nodes = f"{cluster.provider}, {counted(len(view.nodes), 'node')}, {seconds(view.age_seconds)}"
    worst = "no end to it" if cluster.endless else f"at worst {dollars(cluster.worst_case_dollars)}"
    cost = f"{dollars(cluster.dollars_per_hour)}/h, {dollars(view.dollars_so_far)} so far, {worst}"
    nothing = cluster.dollars_per_hour == 0 and not view.dollars_so_far
    first.append(f"  {'costs nothing' if nothing else cost}  {nodes}")
    run = [harmless("no run yet; hvdcloud run starts one", _SOFT)] if view.run is None else _run(view.run)
    troubles = list(_troubles(view))
    more = len(troubles) - _MOST_TROUBLES
    if more > 0:
        troubles[_MOST_TROUBLES:] = [Text(f"and {more} more", style=_WARNS)]
    return Text("\n").join([first, *run, *troubles])


def _run(run: RunView) -> list[Text]:
    state, line = run.state, Text("run ")
    world = None if state.done else state.world
    now = state.result if state.done else state.state
    line.append_text(harmless(state.run)).append("  ").append_text(harmless(now, _RESULTS.get(now, "cyan")))
    line.append(f"  {seconds(run.seconds)}, ")
    if world == 0 and now == "running":
        line.append(f"0 of {state.np} ranks: waits for nodes", style=_BAD)
    else:
        missing = world is not None and world < state.np
        line.append(ranks_present(ranks=state.np, now=world), style=_WARNS if missing else "")
    if state.restarts:
        line.append(f", {counted(state.restarts, 'restart')}")
    if state.done:
        line.append(f", {counted(state.checkpoints.files, 'checkpoint file')}")
    lines = [line]
    if run.reason:
        lines.append(harmless(run.reason, _BAD))
    if said := _progress(run):
        lines.append(said)
    if (slow := slow_ranks_of(state)) is not None:
        lines.append(harmless(slow.text, _WARNS))
    return lines


def _progress(run: RunView) -> Text:
    """`epoch 37/60 62%   loss 0.0123   4,267 images/s`; empty where nothing is known."""
    said, at = [], run.position
    if at is not None:
        of = f"/{at.total:,} {at.number / at.total:.0%}" if at.total else ""
        said.append(Text(f"{at.unit} {at.number:,}{of}"))
    for name, value in run.numbers.items():
        shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        said.append(harmless(f"{shown} {name}" if "/" in name else f"{name} {shown}"))
    return Text("   ").join(said)


def _troubles(view: View) -> Iterator[Text]:
    """What the provider says, and each node that does not do its part."""
    if view.notice:
        yield harmless(view.notice, _WARNS)
    state = view.run.state if view.run is not None and not view.run.state.done else None
    members = {member.name: member for member in state.members} if state is not None else {}
    data = {each.node: each for each in state.data} if state is not None and state.waits_for_data else {}
    for node in view.nodes:
        why = f": {node.trouble}" if node.trouble else ""
        if node.state == "running" and node.silent is not None:
            yield harmless(f"{node.name}: no answer for {node.silent:.0f} s{why}", _BAD)
        elif why:
            yield harmless(f"{node.name}{why}", _WARNS)
        if node.name in data and not data[node.name].ready:
            yield harmless(f"{node.name}: data: {progress(data[node.name])}", _WARNS)
        member = members.get(node.name)
        if member is not None and not member.takes_part:
            alias = f" as {member.alias}" if member.alias != member.name else ""
            why = f": {member.why}" if member.why else ""
            style = _BAD if member.has_left else _WARNS
            yield harmless(f"{node.name} in the run: {member.state}{alias}{why}", style)


# --- nodes ------------------------------------------------------------------------------------------------------------


def rows(view: View) -> dict[str, Sequence[Text]]:
    """The cells of every row, by a name of its own: one of each node, and below it one of each of its GPUs."""
    found: dict[str, Sequence[Text]] = {}
    for node in view.nodes:
        found[node.name] = _node(node)
        if node.state == "running" and node.silent is None:
            for number, gpu in enumerate(node.sample.get("gpus") or []):
                found[f"{node.name} {number}"] = _gpu(gpu)
    return found


def _node(node: NodeView) -> Sequence[Text]:
    name, sample = harmless(node.name), node.sample
    if node.state != "running" or node.silent is not None:
        return name, harmless("silent" if node.state == "running" else node.state, _BAD), *[Text("")] * 4
    received, sent, waiting = sample.get("received"), sample.get("sent"), sample.get("waiting")
    return (
        name,
        Text(node.state) if sample else Text("asking …", style=_SOFT),
        _percent(sample.get("cpu")),
        _of(sample.get("memory"), sample.get("memory_total")),
        Text("" if received is None or sent is None else f"{received / 1e6:.1f}/{sent / 1e6:.1f} MB/s"),
        Text("" if waiting is None else f"{waiting:.0f}", style=_WARNS if waiting else ""),
    )


def _gpu(gpu: Mapping[str, Any]) -> Sequence[Text]:
    heat, power, index = gpu.get("temperature"), gpu.get("power"), gpu.get("index")
    state = Text("" if heat is None else f"{heat:.0f} °C ", style=_BAD if heat and heat >= 90 else "")
    return (
        Text(f"  GPU {'?' if index is None else index}"),
        state.append("" if power is None else f"{power:.0f} W"),
        _percent(gpu.get("utilization")),
        _of(gpu.get("memory"), gpu.get("memory_total")),
        *[Text("")] * 2,
    )


def _percent(value: float | None) -> Text:
    return Text("" if value is None else f"{value:3.0f} %")


def _of(part: float | None, total: float | None) -> Text:
    return Text("" if part is None or not total else f"{part / 1e9:.1f}/{total / 1e9:.1f} GB")
