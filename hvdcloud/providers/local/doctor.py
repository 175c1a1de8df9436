"""What is checked before containers are made."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from hvdcloud.checks import Check, Finding, failed, fine, warning
from hvdcloud.providers.engine.gpus import Wish, choose, device_request, holders, users
from hvdcloud.providers.local.gpus import PLACE, ask_this_machine
from hvdcloud.providers.local.requests import data_mounts
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.config.model import Config


def checks(config: Config, spec: ClusterSpec) -> Sequence[Check]:
    """Those of the project and of this machine, among them `engine`, are everybody's."""
    slots, wish = config.run.slots_per_node or 1, config.local.gpus
    ranks = wish if isinstance(wish, int) and not config.run.slots_per_node else slots * spec.nodes
    see = ("engine",)
    found = [
        Check(name="machine", run=lambda: _machine(spec, ranks=ranks), blocks=False, see=see),
        Check(name="bucket", run=lambda: _bucket(spec.bucket)),
        *([Check(name="data", run=lambda: _data_folders(spec))] if data_mounts(spec) else []),
    ]
    if wish is not None:
        found.insert(1, Check(name="GPUs", run=lambda: _gpus(spec, wish), see=see))
    return found


def _machine(spec: ClusterSpec, *, ranks: int) -> Finding:
    """Whether the nodes have room beside each other."""
    info = _asked(lambda api: api.info())
    cores, gb = int(info.get("NCPU", 0)), float(info.get("MemTotal", 0)) / 1e9
    said = f"{counted(spec.nodes, 'node')} with {counted(ranks, 'rank')} share {counted(cores, 'core')} and {gb:.1f} GB"
    if cores and ranks > cores:
        return warning(
            f"{said}; ranks that wait for each other's core are slow", hint=f"--nodes {max(1, cores)}, or fewer slots"
        )
    return fine(said)


def _gpus(spec: ClusterSpec, wish: Wish) -> Finding:
    """Driver, the engine's way to give GPUs to containers, and each GPU's free memory and user."""
    facts = ask_this_machine()
    found = facts.found_gpus(PLACE)
    listed, info = _asked(lambda api: (holders(api), api.info()))
    # What the cluster itself holds, it has.
    held = [holder for holder in listed if holder.cluster != spec.name]
    way = device_request(info, found, hook=facts.hook)["Driver"]
    choose(found, held, wish, nodes=spec.nodes, indices=range(spec.nodes))
    used = users(found, held)
    lines = [
        f"{device.title} {device.name}, {size(device.free_bytes)} free"
        + (f", used by {used[device.uuid]}" if device.uuid in used else "")
        for device in found
    ]
    ways = {"cdi": "CDI devices", "nvidia": "NVIDIA's container toolkit"}
    return fine(f"driver {found[0].driver}, {ways[way]}; {'; '.join(lines)}")


def _bucket(url: str) -> Finding:
    """Whether checkpoints can be put there."""
    folder = Path(unquote(urlsplit(url).path))
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return failed(
            f"the bucket's folder {folder} cannot be made or written: {there} is no folder that this user may write",
            hint="name another one in checkpoints.bucket, or with --bucket",
        )
    free = shutil.disk_usage(there).free / 1e9
    if free < 1:
        return warning(f"{folder}: only {free:.1f} GB are free", hint="free some space, or name another folder")
    return fine(f"{folder}, {free:.0f} GB free")


def _data_folders(spec: ClusterSpec) -> Finding:
    """Whether the folders with data can be mounted: the engine, which may be root's, would be less strict."""
    for name, each in spec.data.items():
        if (folder := each.folder) is None or (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            continue
        exists = "is no folder" if not folder.is_dir() else "is not this user's to read"
        why = exists if os.path.lexists(folder) else "does not exist"
        message = f"the folder of data set {name}, {folder}, {why}"
        return failed(message, hint=f"put the files there, or name another folder in data.{name}")
    return fine(f"{counted(len(data_mounts(spec)), 'folder')} of data to mount")


def _asked(ask: Callable[[Any], Any]) -> Any:
    from hvdcloud import engine

    with contextlib.closing(engine.connect()) as client:
        return ask(client.api)
