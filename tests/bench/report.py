"""From raw samples to one JSON document, and from that to the tables."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import contestants
from tests.bench.measure import Sample, output
from tests.bench.workplace import HVDCLOUD, REPOSITORY, TORCHX_BIN

VERSION = 1


def document(
    *,
    image: str,
    load: float,
    jobs: Mapping[str, tuple[str, Sequence[Sample]]],
    startup: Mapping[str, Sequence[float]],
    scaling: Mapping[int, Sequence[Mapping[str, float]]],
) -> dict[str, Any]:
    """Everything that was measured, and what follows from it.

    Args:
        load: the machine's load average before anything was measured.
        jobs: contestant's key → its title and samples.
        startup: command → seconds.
        scaling: nodes → what each run reported.
    """
    found: dict[str, Any] = {
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": round(load, 2)},
        "versions": versions(image),
    }
    if jobs:
        found["whole_job"] = _whole_job(jobs)
    if startup:
        found["startup"] = {title: {**summary(seconds), "seconds": seconds} for title, seconds in startup.items()}
    if scaling:
        found["scaling"] = _scaling(scaling)
    return found


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else platform.processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def versions(image: str) -> dict[str, str]:
    """What was measured."""
    return {
        "hvdcloud": output(HVDCLOUD, "--version").removeprefix("hvdcloud "),
        "commit": commit(),
        "torchx": output(TORCHX_BIN / "torchx", "--version").removeprefix("torchx-"),
        "python": platform.python_version(),
        "engine": output("docker", "version", "--format", "{{.Server.Version}}"),
        "image": image,
        "image_id": output("docker", "image", "inspect", "--format", "{{.Id}}", image),
    }


def commit() -> str:
    """What is checked out."""
    found = output("git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD")
    changed = output("git", "-C", REPOSITORY, "status", "--porcelain")
    return found + (" with changes" if changed else "")


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Of several runs."""
    return {"median": round(median(seconds), 4), "min": round(min(seconds), 4), "max": round(max(seconds), 4)}


def _whole_job(jobs: Mapping[str, tuple[str, Sequence[Sample]]]) -> dict[str, Any]:
    middle = {key: median(sample.seconds for sample in samples) for key, (_, samples) in jobs.items()}
    peers = [middle[key] for key in middle if key.startswith("torchx")]
    result = {}
    for key, (title, samples) in jobs.items():
        parts = [contestants.phases(sample) for sample in samples]
        result[key] = {
            "title": title,
            **summary([sample.seconds for sample in samples]),
            "of_bare": round(middle[key] / middle["bare"], 3) if "bare" in middle else None,
            "of_floor": round(middle[key] / middle["floor"], 3) if "floor" in middle else None,
            # The faster way to use it is the one to be measured against.
            "of_torchx": round(middle[key] / min(peers), 3) if peers else None,
            "phases": {phase: round(median(part[phase] for part in parts), 4) for phase in contestants.PHASES},
            "samples": [
                {
                    "seconds": round(sample.seconds, 4),
                    "phases": {phase: round(value, 4) for phase, value in part.items()},
                    "marks": {name: round(at, 4) for name, at in sample.marks.items()},
                }
                for sample, part in zip(samples, parts, strict=True)
            ],
        }
    return result


def _scaling(runs: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        str(nodes): {
            "images_per_second": median(run["images_per_second"] for run in found),
            "accuracy": median(run["accuracy"] for run in found),
            "samples": list(found),
        }
        for nodes, found in runs.items()
    }
    one, two = result["1"]["images_per_second"], result["2"]["images_per_second"]
    return {"nodes": result, "speedup": round(two / one, 3)}


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(found: Mapping[str, Any]) -> str:
    """The tables, for people and for the README."""
    where, what = found["machine"], found["versions"]
    parts = [
        f"Measured {found['date'][:10]} by `make bench`: {where['cores']} cores ({where['cpu']}), {where['kernel']}, "
        f"Docker {what['engine']}, Python {what['python']}, TorchX {what['torchx']}."
    ]
    if jobs := found.get("whole_job"):
        runs = len(next(iter(jobs.values()))["samples"])
        parts += [f"Two nodes, one all-reduce job, the same image; {runs} rounds, all of them in each:", _jobs(jobs)]
        parts += ["Where the time goes (medians, seconds):", _phases(jobs)]
    if startup := found.get("startup"):
        rows = [
            [f"`{title}`", f"{entry['median'] * 1000:.0f} ms", f"{entry['min'] * 1000:.0f} ms"]
            for title, entry in startup.items()
        ]
        parts += ["Start of the commands:", table(["", "median", "fastest"], rows)]
    if scaling := found.get("scaling"):
        rows = [
            [nodes, f"{entry['images_per_second']:.0f}", f"{entry['accuracy']:.3f}"]
            for nodes, entry in scaling["nodes"].items()
        ]
        parts += [
            f"Template `torch`, one core per node: {scaling['speedup']:.2f} times as fast on two nodes as on one.",
            table(["nodes", "images/s", "accuracy"], rows),
        ]
    return "\n\n".join(parts) + "\n"


def _jobs(jobs: Mapping[str, Any]) -> str:
    rows = [
        [
            entry["title"],
            f"{entry['median']:.2f} s",
            f"{entry['min']:.2f} to {entry['max']:.2f} s",
            _ratio(entry.get("of_bare")),
            _ratio(entry["of_floor"]),
            _ratio(entry["of_torchx"]),
        ]
        for entry in jobs.values()
    ]
    return table(["", "median", "range", "of the job alone", "of the floor", "of TorchX"], rows)


def _phases(jobs: Mapping[str, Any]) -> str:
    # The job alone has one phase that the others lack, and lacks most of theirs.
    jobs = {key: entry for key, entry in jobs.items() if key != "bare"}
    rows = [
        [phase, *(f"{seconds:.2f}" if (seconds := entry["phases"][phase]) else "" for entry in jobs.values())]
        for phase in contestants.PHASES
    ]
    return table(["", *(entry["title"] for entry in jobs.values())], rows)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
