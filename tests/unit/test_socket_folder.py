"""Folders for the sockets of connections to hosts."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.providers.ssh import socket_folder


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are: tmp_path may be too long, but not for the lock."""
    monkeypatch.setattr(socket_folder, "_LONGEST_BASE", 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "hvdcloud"


def test_a_folder_is_private_and_nothing_is_left_of_the_last_one(parent: Path) -> None:
    first, second = socket_folder.make(), socket_folder.make()
    assert {first.parent, second.parent} == {parent}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (parent, first)] == [0o700, 0o700]
    socket_folder.delete(first)
    assert second.is_dir()
    socket_folder.delete(second)
    assert not parent.exists()


def test_what_a_killed_process_left_is_deleted_and_what_another_one_uses_is_not(parent: Path) -> None:
    dead, used = parent / "dead", parent / "used"
    parent.mkdir(mode=0o700)
    for path in (dead, used):
        path.mkdir()
        (path / "said").write_text("")
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    mine = socket_folder.make()
    assert sorted(parent.iterdir()) == sorted([mine, used])
    os.close(lock)
    socket_folder.delete(mine)
    socket_folder.delete(socket_folder.make())
    assert not parent.exists()


@pytest.mark.parametrize("kind", ["open to others", "link"])
def test_a_folder_of_another_user_is_refused(parent: Path, tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        parent.symlink_to(tmp_path / "theirs")
    else:
        parent.mkdir()
        parent.chmod(0o777)
    with pytest.raises(UsageError, match="is not a private folder"):
        socket_folder.make()
