"""What `hvdcloud doctor` looks at before containers are made."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from hvdcloud.checks import Check, Finding, existing, failed, fine, unwritable, warning
from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY
from hvdcloud.errors import UsageError
from hvdcloud.providers.engine import view
from hvdcloud.providers.local import data
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config

_RANK_GB = 0.5
"""What a rank takes before it has loaded anything: Python, torch and Horovod."""


def checks(config: Config, spec: ClusterSpec) -> Sequence[Check]:
    """The check `engine`, on which some of these depend, is everybody's."""
    slots = config.run.slots_per_node or 1
    return [
        Check(name="name", run=lambda: _name(spec), needs=("engine",)),
        Check(name="machine", run=lambda: _machine(spec, ranks=slots * spec.nodes), needs=("engine",), early=True),
        Check(name="bucket", run=lambda: _bucket(spec.bucket), early=True),
        *([Check(name="data", run=lambda: _folders(spec), early=True)] if data.mounts(spec) else []),
    ]


def _name(spec: ClusterSpec) -> Finding:
    """Whether containers have our nodes' names already."""
    names = {spec.node_name(index) for index in range(spec.nodes)}
    for container in _asked(lambda api: api.containers(all=True)):
        labels = container["Labels"] or {}
        for name in sorted(names & {name.removeprefix("/") for name in container["Names"]}):
            problem = view.name_taken(name, labels, spec)
            if labels.get(LABEL_MANAGED_BY) == MANAGED_BY and labels.get(LABEL_CLUSTER) == spec.name:
                message = f"the cluster {spec.name} exists already, made by {labels.get(LABEL_OWNER, 'another user')}"
                return warning(message, hint=problem.hint)
            return failed(problem.message, hint=problem.hint, error=UsageError)
    return fine(f"no container is called {spec.node_name(0)}")


def _machine(spec: ClusterSpec, *, ranks: int) -> Finding:
    """Whether the nodes have room beside each other."""
    info = _asked(lambda api: api.info())
    cores, gb = int(info.get("NCPU", 0)), float(info.get("MemTotal", 0)) / 1e9
    said = f"{counted(spec.nodes, 'node')} with {counted(ranks, 'rank')} share {counted(cores, 'core')} and {gb:.1f} GB"
    if cores and ranks > cores:
        return warning(
            f"{said}; ranks that wait for each other's core are slow", hint=f"--nodes {max(1, cores)}, or fewer slots"
        )
    if gb and ranks * _RANK_GB > gb:
        return warning(f"{said}: little memory for that many", hint="take fewer nodes")
    return fine(said)


def _bucket(url: str) -> Finding:
    """Whether checkpoints can be put there."""
    if not url.startswith("file://"):
        from hvdcloud.storage.open import open_bucket

        open_bucket(url, retry_seconds=5).prefixes("")
        return fine(f"{url} can be listed")
    folder = Path(unquote(urlsplit(url).path))
    if why := unwritable(folder):
        return failed(
            f"the bucket's folder {folder} cannot be made or written: {why}",
            hint="name another one in checkpoints.bucket, or with --bucket",
            error=UsageError,
        )
    free = shutil.disk_usage(existing(folder)).free / 1e9
    if free < 1:
        return warning(f"{folder}: only {free:.1f} GB are free", hint="free some space, or name another folder")
    return fine(f"{folder}, {free:.0f} GB free")


def _folders(spec: ClusterSpec) -> Finding:
    """Whether the folders with data can be mounted."""
    for problem in data.problems(spec):
        return failed(problem.message, hint=problem.hint, error=problem.error)
    return fine(f"{counted(len(data.mounts(spec)), 'folder')} of data to mount")


def _asked(ask: Callable[[Any], Any]) -> Any:
    from hvdcloud import engine

    with contextlib.closing(engine.connect()) as client:
        return ask(client.api)
