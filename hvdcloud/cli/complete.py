"""What the shell completes: values that this machine knows, from the state folder alone."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import typer

from hvdcloud.cluster.files import state_root
from hvdcloud.cluster.state import ClusterState

_CLUSTER_FILES = ("cluster.json", "journal.jsonl", "verified.json", "bucket")
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
    with contextlib.suppress(OSError):
        folders = sorted(state_root().iterdir())
        return [folder.name for folder in folders if any((folder / file).exists() for file in _CLUSTER_FILES)]
    return []


def nodes(ctx: typer.Context) -> list[str]:
    """The names of the cluster's nodes."""
    record = ClusterState(_cluster(ctx)).load()
    return [node.name for node in record.nodes] if record else []


def runs(ctx: typer.Context) -> list[str]:
    """The ids of the cluster's runs that were started from this machine, the newest first."""
    record = ClusterState(_cluster(ctx)).load()
    return sorted(record.runs, reverse=True) if record else []


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
