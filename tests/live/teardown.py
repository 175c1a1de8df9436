"""`python -m tests.live.teardown FOLDER`: deletes everything that `make live` has made; exit code 0: nothing is left.

May be run again at any time, also by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hvdcloud.config.file import CONFIG_FILE, load_config

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
    """VMs first; then the checkpoints, and what `setup` made; the empty bucket stays, and costs nothing."""
    folder = folder.absolute()
    codes = []
    if (folder / BEGUN / "up").exists():
        codes.append(_hvdcloud(folder, "down", "--force"))
    if (folder / BEGUN / "setup").exists():
        _empty(folder)
        codes.append(_hvdcloud(folder, "setup", "--destroy", "--yes"))
    return max(codes, default=0)


def _hvdcloud(folder: Path, *words: str) -> int:
    argv = [sys.executable, "-m", "hvdcloud", *words]
    return subprocess.run(argv, cwd=folder / PROJECT, env=environ_of(folder), stdin=subprocess.DEVNULL).returncode


def _empty(folder: Path) -> None:
    """Delete the cluster's objects, in a bucket that `setup` made."""
    from google.cloud.storage import Client

    url = load_config(folder / PROJECT / CONFIG_FILE, environ={}).checkpoints.bucket
    if url is None or not url.startswith("gs://"):
        return
    name, _, prefix = url.removeprefix("gs://").partition("/")
    bucket = Client().bucket(name)
    if prefix and bucket.exists():
        bucket.delete_blobs(list(bucket.list_blobs(prefix=f"{prefix}/")))


if __name__ == "__main__":
    sys.exit(teardown(Path(sys.argv[1])))
