"""What the shell completes: values that this machine knows, from the state folder alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

CLUSTER_FILES = ("cluster.json", "journal.jsonl", "verified.json", "bucket")
"""What a cluster's state folder has at least one of; the state folder holds other things too."""


def templates() -> list[str]:
    """The values of `--template`."""
    from hvdcloud.lifecycle.init import TEMPLATES

    return list(TEMPLATES)


def providers() -> list[str]:
    """The values of `--provider`."""
    return ["local", "ssh", "gce"]


def controllers() -> list[str]:
    """The values of `--controller`."""
    return ["gloo", "mpi"]


def clusters() -> list[str]:
    """The names of clusters that this machine has made, also of those that are gone."""
    from hvdcloud.cluster.files import state_root

    with contextlib.suppress(OSError):
        folders = sorted(state_root().iterdir())
        return [folder.name for folder in folders if any((folder / file).exists() for file in CLUSTER_FILES)]
    return []


def nodes(ctx: typer.Context) -> list[str]:
    """The names of the cluster's nodes."""
    from hvdcloud.cluster.state import ClusterState

    record = ClusterState(_cluster(ctx)).load()
    return [node.name for node in record.nodes] if record else []


def runs(ctx: typer.Context) -> list[str]:
    """The ids of the cluster's runs that were started from or pulled to this machine, the newest first."""
    from hvdcloud.runs.reports import plain_name

    # A shell puts them into the command line as they are, and a job may have made the folder of any name.
    return sorted(filter(plain_name, set(_runs(_cluster(ctx)))), reverse=True)


def _runs(cluster: str) -> Iterator[str]:
    from hvdcloud.cluster.state import ClusterState

    state = ClusterState(cluster)
    record = state.load()
    yield from record.runs if record else ()
    # Both outlive the cluster.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        verified = json.loads(state.verified_files.read_text(encoding="utf-8"))["verified"]
        yield from (entry["run"] for entry in verified)
    with contextlib.suppress(OSError):
        yield from (folder.name for folder in (state.dir / "bucket" / cluster).iterdir())


def _cluster(ctx: typer.Context) -> str:
    """The cluster that the command line is about: `--name`, else the environment's, else the file's.

    The file is not parsed: a completion raises no error in it.
    """
    given: Any = ctx.obj  # What has kept the global options, cli/app.py.
    if name := given.name or os.environ.get("HVDCLOUD_NAME"):
        return str(name)
    with contextlib.suppress(OSError, ValueError):
        text = Path(given.config or "hvdcloud.yaml").read_text(encoding="utf-8")
        if found := re.search(r"""(?m)^name:\s*["']?([a-z0-9-]+)""", text):
            return found[1]
    return ""
