"""`python -m tests.live.teardown FOLDER`: deletes everything that `make live` has made; exit code 0: nothing is left.

May be run again at any time, also by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.config.file import CONFIG_FILE
from tests.support.configs import load_config

if TYPE_CHECKING:
    from google.cloud.storage import Bucket

PROJECT = "project"
"""The folder in the folder that `hvdcloud` runs in, with hvdcloud.yaml and what is sent to the nodes."""
STATE = "state"
BEGUN = "begun"
"""A file for each thing that was begun: `setup`, `up`."""


def environ_of(folder: Path) -> dict[str, str]:
    """What hvdcloud sees: a state folder of its own, so that nothing else that this machine set up is touched."""
    return {**os.environ, "HVDCLOUD_STATE_DIR": str(folder / STATE)}


def begin(folder: Path, what: str) -> None:
    """Note that something is about to be made."""
    (folder / BEGUN).mkdir(exist_ok=True)
    (folder / BEGUN / what).touch()


def teardown(folder: Path) -> int:
    """VMs first; then the checkpoints, what `setup` made, and the bucket, which `setup` would not make again."""
    folder = folder.absolute()
    codes = []
    if (folder / BEGUN / "up").exists():
        codes.append(_hvdcloud(folder, "down", "--force"))
    if (folder / BEGUN / "setup").exists():
        _empty(folder)
        codes.append(_hvdcloud(folder, "setup", "--destroy", "--yes"))
        codes.append(_delete_bucket(folder))
    return max(codes, default=0)


def _hvdcloud(folder: Path, *words: str) -> int:
    argv = [sys.executable, "-m", "hvdcloud", *words]
    return subprocess.run(argv, cwd=folder / PROJECT, env=environ_of(folder), stdin=subprocess.DEVNULL).returncode


def _bucket(folder: Path) -> tuple[Bucket | None, str]:
    """The bucket that `setup` made, and the prefix of the cluster's objects; None: there is none."""
    from google.cloud.storage import Client

    url = load_config(folder / PROJECT / CONFIG_FILE, environ={}).checkpoints.bucket
    if url is None or not url.startswith("gs://"):
        return None, ""
    name, _, prefix = url.removeprefix("gs://").partition("/")
    bucket = Client().bucket(name)
    return (bucket if bucket.exists() else None), prefix


def _empty(folder: Path) -> None:
    """Delete the cluster's objects."""
    bucket, prefix = _bucket(folder)
    if bucket is not None and prefix:
        bucket.delete_blobs(list(bucket.list_blobs(prefix=f"{prefix}/")))


def _delete_bucket(folder: Path) -> int:
    """Delete the bucket, unless it holds what is not ours; the exit code."""
    from google.api_core.exceptions import Conflict

    bucket, _ = _bucket(folder)
    if bucket is None:
        return 0
    try:
        bucket.delete()
    except Conflict:
        print(f"gs://{bucket.name} holds what this did not write, and is left", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(teardown(Path(sys.argv[1])))
