"""From raw samples to one JSON document, and from that to the tables."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from statistics import median
from typing import Any

from tests.bench.gce.emulated import delays
from tests.bench.measure import Sample, output
from tests.bench.report import commit, machine, summary, table
from tests.bench.workplace import HVDCLOUD

VERSION = 1

STEPS: Mapping[str, tuple[str, str]] = {
    "up: is there a cluster of this name?": ("imported", "looked"),
    "up: plan": ("looked", "planned"),
    "up: create": ("planned", "created"),
    "up: wait until all are ready": ("created", "up"),
    "down: look": ("down-starts", "found"),
    "down: delete, look until nothing is left": ("found", "down"),
}
"""The marks of `life` between which each step lies."""

PURPOSES: Mapping[str, Sequence[str]] = {
    "create": ("instances.bulkInsert", "firewalls.insert"),
    "delete: one for each VM": ("instances.delete",),
    "delete: firewall rules": ("firewalls.delete",),
    "wait for an operation": ("zoneOperations.wait", "globalOperations.wait"),
    "status of nodes": ("instances.getGuestAttributes",),
}
"""The API's methods by what they are called for; all others look at something."""
LOOKS = "look: lists and gets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """`up` and `down` of one cluster, and the same by hand."""

    sample: Sample
    floor: Sample
    calls: Sequence[Mapping[str, Any]]

    @property
    def up(self) -> float:
        return self.sample.marks["up"] - self.sample.marks["imported"]

    @property
    def down(self) -> float:
        return self.sample.marks["down"] - self.sample.marks["down-starts"]

    @property
    def floor_up(self) -> float:
        return self.floor.marks["up"] - self.floor.marks["begin"]

    @property
    def floor_down(self) -> float:
        return self.floor.marks["down"] - self.floor.marks["up"]

    @property
    def methods(self) -> Counter[str]:
        """How often each method was called."""
        return Counter(call["method"].removeprefix("compute.") for call in self.calls)

    def plain(self) -> dict[str, Any]:
        """For the document."""
        marks = self.sample.marks
        return {
            "up": round(self.up, 4),
            "down": round(self.down, 4),
            "floor_up": round(self.floor_up, 4),
            "floor_down": round(self.floor_down, 4),
            "imported": round(marks["imported"], 4),
            "steps": {step: round(marks[end] - marks[begin], 4) for step, (begin, end) in STEPS.items()},
            "calls": dict(sorted(self.methods.items())),
        }


def document(
    lives: Mapping[int, Sequence[Life]], commands: Mapping[str, Sequence[float]], *, load: float
) -> dict[str, Any]:
    """Everything that was measured, and what follows from it.

    Args:
        lives: by the number of nodes.
        commands: command → seconds.
        load: the machine's load average before anything was measured.
    """
    own = delays()
    nodes = {str(count): _summarised([each.plain() for each in found]) for count, found in lives.items()}
    first = next(iter(nodes.values()))
    for entry in nodes.values():
        for way in ("up", "down"):
            entry[f"{way}_of_first"] = round(entry[way]["median"] / first[way]["median"], 3)
            beyond, beyond_first = (each[way]["median"] - each[f"floor_{way}"]["median"] for each in (entry, first))
            entry[f"{way}_of_first_beyond_floor"] = round(beyond / beyond_first, 3)
            waits, waits_first = (each[way]["median"] - own[way] for each in (entry, first))
            entry[f"{way}_of_first_beyond_delays"] = round(waits / waits_first, 3)
    return {
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": round(load, 2)},
        "versions": {
            "hvdcloud": output(HVDCLOUD, "--version").removeprefix("hvdcloud "),
            "commit": commit(),
            "python": platform.python_version(),
            "google-cloud-compute": version("google-cloud-compute"),
        },
        "delays": own,
        "nodes": nodes,
        "commands": {title: {**summary(seconds), "seconds": seconds} for title, seconds in commands.items()},
    }


def _summarised(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    methods = sorted({method for sample in samples for method in sample["calls"]})
    return {
        **{
            key: summary([sample[key] for sample in samples])
            for key in ("up", "down", "floor_up", "floor_down", "imported")
        },
        "steps": {step: round(median(sample["steps"][step] for sample in samples), 4) for step in STEPS},
        "calls": {method: median(sample["calls"].get(method, 0) for sample in samples) for method in methods},
        "samples": samples,
    }


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(found: Mapping[str, Any]) -> str:
    """The tables, for people and for the README."""
    where, what, nodes, own = found["machine"], found["versions"], found["nodes"], found["delays"]
    runs = len(next(iter(nodes.values()))["samples"])
    parts = [
        f"Measured {found['date'][:10]} by `make bench-gce`: {where['cores']} cores ({where['cpu']}), "
        f"{where['kernel']}, Python {what['python']}, google-cloud-compute {what['google-cloud-compute']}. The Compute "
        f"API is the emulator of this repository (records) in a process of its own, whose operations and boots take "
        f"{own['up']} s of every `up` and {own['down']} s of every `down`. Medians of {runs} rounds, each cluster in a "
        "fresh process.",
        _times(nodes),
        "Calls of the API for one `up` and `down`:",
        _calls(nodes),
        "Where the time goes (seconds):",
        table(
            ["nodes", *nodes],
            [[step, *(f"{entry['steps'][step]:.3f}" for entry in nodes.values())] for step in STEPS]
            + [["not counted above: Google's library is loaded", *(_seconds(e["imported"]) for e in nodes.values())]],
        ),
        "Start of the commands:",
        table(
            ["", "median", "fastest"],
            [
                [f"`{title}`", f"{entry['median'] * 1000:.0f} ms", f"{entry['min'] * 1000:.0f} ms"]
                for title, entry in found["commands"].items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _times(nodes: Mapping[str, Any]) -> str:
    first = next(iter(nodes))
    rows: dict[str, list[str]] = {}
    for way in ("up", "down"):
        rows |= {
            f"`{way}`": [_seconds(entry[way]) for entry in nodes.values()],
            f"`{way}`, by hand": [_seconds(entry[f"floor_{way}"]) for entry in nodes.values()],
            f"`{way}`, of {first} node's": [f"{entry[f'{way}_of_first']:.2f}" for entry in nodes.values()],
            f"`{way}`, of {first} node's, both without the emulator's delays": [
                f"{entry[f'{way}_of_first_beyond_delays']:.2f}" for entry in nodes.values()
            ],
        }
    return table(["nodes", *nodes], [[title, *values] for title, values in rows.items()])


def _calls(nodes: Mapping[str, Any]) -> str:
    known = {method for methods in PURPOSES.values() for method in methods}
    rows = [
        [purpose, *(f"{sum(entry['calls'].get(method, 0) for method in methods):g}" for entry in nodes.values())]
        for purpose, methods in PURPOSES.items()
    ]
    looks = [sum(n for method, n in entry["calls"].items() if method not in known) for entry in nodes.values()]
    rows.append([LOOKS, *(f"{count:g}" for count in looks)])
    return table(["nodes", *nodes], rows)


def _seconds(entry: Mapping[str, float]) -> str:
    return f"{entry['median']:.2f} s"
