"""Which files of a project are sent to the nodes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.remote.code import list_code

NOBODY = 65534


def paths(folder: Path) -> list[str]:
    return [file.path for file in list_code(folder)]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_everything_is_sent_sorted_but_git_and_caches(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/a.py", ".git/HEAD", "lib/__pycache__/a.pyc", ".venv/bin/python", ".env.example")
    assert paths(tmp_path) == [".env.example", "lib/a.py", "train.py"]


@contextmanager
def somebody_elses() -> Iterator[Path]:
    """An empty folder, in which no folder is readable that may not be read by everybody; root may read any."""
    # Not pytest's folder: its parents are this user's alone.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        own = os.geteuid()
        if own == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(own)


def test_a_folder_that_cannot_be_read_is_named_and_not_even_tried_if_it_is_ignored() -> None:
    with somebody_elses() as folder:
        write(folder, "train.py", "data/secret")
        data = folder / "data"
        data.chmod(0)
        try:
            with pytest.raises(UsageError, match=rf"^{data}\S* cannot be read: Permission denied$"):
                paths(folder)
            (folder / ".gitignore").write_text("data\n")
            assert paths(folder) == [".gitignore", "train.py"]
        finally:
            data.chmod(0o755)


def test_links_are_sent_as_links_and_modes_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "run.sh")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    link, script = list_code(tmp_path)
    assert (link.path, link.link) == ("link", "run.sh")
    assert (script.mode, script.size, len(script.sha256)) == (0o755, 6, 64)
