"""What a test does to a machine to see what hvdcloud makes of it; each is undone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def small_disk(folder: Path, options: str) -> list[str]:
    """Words before a command for which `folder` is a disk of its own that no other process sees."""
    mount = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
    mine = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    words = [*mine, "sh", "-c", mount, "sh", options, str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("this user may not mount a disk")
    return words


@contextlib.contextmanager
def small_disk_in(engine: Any, node: str, path: str, size: str) -> Iterator[None]:
    """A folder of a node is a disk of its own."""
    process = engine.containers.get(node).attrs["State"]["Pid"]
    inside = ["nsenter", "--target", str(process), "--mount", "--pid"]
    if os.geteuid() or shutil.which("nsenter") is None or not Path(f"/proc/{process}").exists():
        pytest.skip("this user may not mount a disk in a container")
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "umount", "--lazy", path], check=True)
