"""Objects to files below one folder, and never outside it; what `pull` and a restore on a node share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdcloud.checkpoints.manifest import Entry
from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import PARTIAL_SUFFIX, Bucket, Download, check_name, sync_folder


def fetch(
    bucket: Bucket,
    wanted: Sequence[tuple[Entry, Path]],
    *,
    prefix: str,
    workers: int,
    on_done: Callable[[Entry, Path, Exception | None], None],
) -> None:
    """Download objects below `prefix` and flush the folders they went to; `on_done` once per file."""
    if not wanted:
        return
    by_target = {str(path): entry for entry, path in wanted}
    folders: set[Path] = set()

    def done(item: Download, error: Exception | None) -> None:
        if error is None:
            folders.add(item.target.parent)
        on_done(by_target[str(item.target)], item.target, error)

    items = [
        Download(
            name=prefix + entry.object,
            target=path,
            size=entry.size,
            crc32c=entry.crc32c,
            generation=entry.generation or None,
            modified=entry.modified,
        )
        for entry, path in wanted
    ]
    bucket.download_many(items, workers=workers, on_done=done)
    for folder in folders:
        sync_folder(folder)


def local_paths(root: Path, names: Sequence[str]) -> dict[str, Path]:
    """Where objects of these names go below `root`, none of which leads out of it.

    Raises CheckpointError: a name that is absolute, contains "..", or leads through a symbolic link to another place.
    """
    real_root = os.path.realpath(root)
    inside: set[Path] = set()
    places: dict[str, Path] = {}
    for name in names:
        path = root.joinpath(*check_name(name))
        if path.parent not in inside:
            real = os.path.realpath(path.parent)
            if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
                raise CheckpointError(
                    f"{name} would be written to {real}, outside {root}: a symbolic link leads there",
                    hint=f"remove the link, or pull to another folder with --to; nothing was written below {real}",
                )
            inside.add(path.parent)
        places[name] = path
    return places


def remove_partials(root: Path) -> None:
    """Delete what a killed download was in the middle of; only where no other one can be at work."""
    for folder, _, files in os.walk(root):
        for name in files:
            if name.startswith(".") and name.endswith(PARTIAL_SUFFIX):
                Path(folder, name).unlink(missing_ok=True)
