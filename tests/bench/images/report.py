"""From what was measured to one JSON document, and from that to the tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from statistics import median
from typing import Any

from tests.bench.images.layers import Sizes
from tests.bench.report import commit, machine, summary, table

VERSION = 1


def document(rows: Mapping[str, Mapping[str, Any]], *, load: float) -> dict[str, Any]:
    """Everything that was measured, and what follows from it.

    Args:
        rows: `framework/device` → what `measure` returned.
        load: the machine's load average before anything was measured.
    """
    return {
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": {**machine(), "load_before": round(load, 2)},
        "rows": {row: _row(found) for row, found in rows.items()},
    }


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    size: Sizes = found["sizes"]
    return {
        "bytes": {
            "image": size.total,
            "layers": size.layers,
            "python_packages": size.packages,
            "of_them_cuda": size.cuda,
            "image_of_packages": round(size.total / size.packages, 3),
        },
        "build_seconds": {
            "cold": found["cold_seconds"],
            "nothing_changed": summary(found["warm_seconds"]),
            "requirement_changed": found["changed_seconds"],
        },
        "push": {
            "first": found["push"][0],
            "nothing_changed": found["push"][1],
            "requirement_changed": found["push_changed"],
        },
        "pull_seconds": {"first": found["pull"][0], "requirement_changed": found["pull"][1]},
        "warm_seconds": found["warm_seconds"],
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The tables."""
    machine, rows = found["machine"], found["rows"]
    layers = list(dict.fromkeys(layer for row in rows.values() for layer in row["bytes"]["layers"]))
    headers = ["", *rows]
    sizes = [
        ["**image**", *(_megabytes(row["bytes"]["image"]) for row in rows.values())],
        *([layer, *(_megabytes(row["bytes"]["layers"].get(layer, 0)) for row in rows.values())] for layer in layers),
        ["Python packages in it", *(_megabytes(row["bytes"]["python_packages"]) for row in rows.values())],
        ["of them NVIDIA's (CUDA, cuDNN, NCCL)", *(_megabytes(row["bytes"]["of_them_cuda"]) for row in rows.values())],
        ["image / Python packages", *(f"{row['bytes']['image_of_packages']:.3f}" for row in rows.values())],
    ]
    times = [
        ["build, from nothing", *(_seconds(row["build_seconds"]["cold"]) for row in rows.values())],
        ["build, nothing changed", *(_seconds(median(row["warm_seconds"])) for row in rows.values())],
        [
            "build, a requirement added",
            *(_seconds(row["build_seconds"]["requirement_changed"]) for row in rows.values()),
        ],
        *(
            [f"push, {title}", *(_sent(row["push"][key]) for row in rows.values())]
            for key, title in (
                ("first", "to an empty registry"),
                ("nothing_changed", "nothing changed"),
                ("requirement_changed", "a requirement added"),
            )
        ),
        ["pull, to an empty engine", *(_seconds(row["pull_seconds"]["first"]) for row in rows.values())],
        ["pull, a requirement added", *(_seconds(row["pull_seconds"]["requirement_changed"]) for row in rows.values())],
    ]
    return (
        f"Measured {found['date'][:10]} by `make bench-images` at {found['commit']}: {machine['cores']} cores "
        f"({machine['cpu']}), {machine['kernel']}. The registry and the engine that pulls are on the same machine.\n\n"
        f"{table(headers, sizes)}\n\n{table(headers, times)}\n"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size else "-"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _sent(push: Mapping[str, float]) -> str:
    return f"{_seconds(push['seconds'])}, {push['bytes'] / 1e6:.1f} MB"
