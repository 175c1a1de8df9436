"""Data sets that are folders of this machine: mounted into the nodes, read-only, with nothing copied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hvdcloud.checks import Finding, failed
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.node.data.sets import MOUNTED


def mounts(spec: ClusterSpec) -> Mapping[str, str]:
    """By where they are in a node, the folders."""
    return {f"{MOUNTED}/{name}": str(each.folder) for name, each in spec.data.items() if each.folder is not None}


def problems(spec: ClusterSpec) -> list[Finding]:
    """The folders that cannot be mounted: the engine, which may be root's, would be less strict."""
    found = []
    for name, each in spec.data.items():
        if each.folder is not None and (why := _unreadable(each.folder)):
            message = f"the folder of data set {name}, {each.folder}, {why}"
            found.append(failed(message, hint=f"put the files there, or name another folder in data.{name}"))
    return found


def _unreadable(folder: Path) -> str | None:
    if not os.path.lexists(folder):
        return "does not exist"
    if not folder.is_dir():
        return "is no folder"
    return None if os.access(folder, os.R_OK | os.X_OK) else "is not this user's to read"
