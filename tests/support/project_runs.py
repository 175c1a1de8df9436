"""What a project's runs have written: in the bucket, on the nodes, on this disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.harness import Project


def in_bucket(project: Project) -> set[str]:
    """The checkpoints that the bucket's manifests know of, by name."""
    folder = project.state / project.name / "bucket" / project.name
    return {
        name.rpartition("/")[2]
        for manifest in folder.glob("*/.hvdcloud/manifest-*.json")
        for name in re.findall(r'"([^"]+[.]pt)"', manifest.read_text())
    }


def on_disk(engine: Any, cluster: str, *indexes: int) -> set[str]:
    """The finished checkpoints on the nodes' own disks (by default both)."""
    find = ["find", "/var/lib/hvdcloud/checkpoints", "-name", "*.pt"]
    outputs = [engine.containers.get(f"{cluster}-{index}").exec_run(find).output for index in indexes or (0, 1)]
    return {name.rpartition("/")[2] for output in outputs for name in output.decode().split()}


def pulled(project: Project) -> set[str]:
    """Pull everything; the names of the checkpoints that are on this disk then."""
    runs = project.hvdcloud("pull", "--json").json["result"]["runs"]
    return {path.name for run in runs for path in Path(run["folder"]).rglob("*.pt")}


def last_run(project: Project) -> dict[str, Any]:
    run: dict[str, Any] = project.hvdcloud("status", "--json").json["result"]["runs"][-1]
    return run
