"""What another user, or a program of theirs, has put where hvdcloud keeps keys and records, or writes a report."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.lifecycle.down import _refuse_if_unsafe as refuse_if_unsafe
from hvdcloud.lifecycle.report import _write as write_report
from hvdcloud.remote.keys import new_key_pair, pinned, read_key_pair, write_key_pair

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def state(state_root: Path) -> ClusterState:
    state = ClusterState("digits")
    state.make()
    return state


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's that has nothing to do with hvdcloud."""
    file = tmp_path / "bashrc"
    file.write_text("mine\n")
    return file


WRITES: dict[str, tuple[str, Callable[[ClusterState], object]]] = {
    "journal": ("journal.jsonl", lambda state: state.journal.record("up")),
    "lock": ("lock", lambda state: state.lock("up").__enter__()),
    "record": (f".cluster.json.{os.getpid()}", lambda state: state.save(ClusterRecord(id="a"))),
    "key": (f".id_ed25519.{os.getpid()}", lambda state: write_key_pair(state.key_file, new_key_pair("x"))),
}


@pytest.mark.parametrize("what", WRITES)
def test_no_file_is_written_through_a_planted_link(state: ClusterState, victim: Path, what: str) -> None:
    name, write = WRITES[what]
    (state.dir / name).symlink_to(victim)
    try:
        write(state)
    except HvdcloudError:
        pass
    else:
        assert not (state.dir / name).exists()
    assert victim.read_text() == "mine\n"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644


@pytest.mark.parametrize("name", ["journal.jsonl", "lock"])
def test_a_pipe_in_the_place_of_a_file_stops_nothing(state: ClusterState, name: str) -> None:
    os.mkfifo(state.dir / name)
    assert state.journal.entries() == []
    with pytest.raises(UsageError, match=name):
        (state.journal.record if name != "lock" else lambda what: state.lock(what).__enter__())("up")


def test_nothing_is_read_through_a_planted_link(state: ClusterState, tmp_path: Path) -> None:
    state.save(ClusterRecord(id="a"))
    state.journal.record("up", cluster_id="a")
    write_key_pair(state.key_file, new_key_pair("x"))
    write_private(state.known_hosts, "digits-0 ssh-ed25519 AAAA\n")
    for file in list(state.dir.iterdir()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / file.name)
    assert state.load() is None
    assert state.journal.entries() == []
    assert read_key_pair(state.key_file) is None
    assert pinned(state) == {}


def test_a_link_is_no_folder_of_a_cluster(state_root: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    state_root.mkdir()
    (state_root / "digits").symlink_to(tmp_path / "theirs")
    state = ClusterState("digits")
    for attempt in (state.make, state.check, lambda: state.save(ClusterRecord(id="a"))):
        with pytest.raises(UsageError, match="is a link"):
            attempt()
    assert list((tmp_path / "theirs").iterdir()) == []
    assert state.load() is None


def test_down_deletes_nothing_behind_a_link_and_takes_nobodys_word_that_checkpoints_are_safe(
    state_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "ssh").mkdir()
    for name in ("id_ed25519", "known_hosts"):
        (tmp_path / "ssh" / name).write_text("mine\n")
    state_root.mkdir()
    (state_root / "digits").symlink_to(tmp_path / "ssh")
    state = ClusterState("digits")
    state.forget()
    assert sorted(path.name for path in (tmp_path / "ssh").iterdir()) == ["id_ed25519", "known_hosts"]
    context: Any = SimpleNamespace(state=state)
    cluster: Any = SimpleNamespace(id="abc")
    with pytest.raises(UsageError, match="is a link"):
        refuse_if_unsafe(context, cluster, ())


def test_the_state_folder_itself_may_be_a_link_of_the_users(state_root: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    state_root.symlink_to(tmp_path / "disk")
    state = ClusterState("digits")
    state.make()
    state.save(ClusterRecord(id="a"))
    assert state.load() == ClusterRecord(id="a")


@needs_root
@pytest.mark.parametrize("theirs", ["state", "state/digits"])
def test_a_folder_of_another_users_holds_no_keys_of_ours(state_root: Path, tmp_path: Path, theirs: str) -> None:
    state = ClusterState("digits")
    state.make()
    state.save(ClusterRecord(id="a"))
    os.chown(tmp_path / theirs, NOBODY, NOBODY)
    for attempt in (state.make, state.check, lambda: state.journal.record("up")):
        with pytest.raises(UsageError, match=f"belongs to user {NOBODY}") as raised:
            attempt()
        assert "HVDCLOUD_STATE_DIR" in raised.value.hint
    assert state.load() is None
    with pytest.raises(UsageError), state.lock("up"):
        pass
    with state.lock("down", required=False):
        pass


@needs_root
@pytest.mark.parametrize("name", ["cluster.json", "journal.jsonl", "id_ed25519", "known_hosts"])
def test_a_file_of_another_users_says_nothing(state: ClusterState, name: str) -> None:
    state.save(ClusterRecord(id="a"))
    state.journal.record("up", cluster_id="a")
    write_key_pair(state.key_file, new_key_pair("x"))
    write_private(state.known_hosts, "digits-0 ssh-ed25519 AAAA\n")
    os.chown(state.dir / name, NOBODY, NOBODY)
    found = {
        "cluster.json": state.load(),
        "journal.jsonl": state.journal.entries(),
        "id_ed25519": read_key_pair(state.key_file),
        "known_hosts": pinned(state),
    }
    assert not found.pop(name)
    assert all(found.values())


def test_what_an_earlier_version_left_readable_becomes_the_owners(state_root: Path) -> None:
    (state_root / "digits").mkdir(parents=True)
    (state_root / "digits").chmod(0o777)
    (state_root / "digits" / "journal.jsonl").write_text("")
    (state_root / "digits" / "journal.jsonl").chmod(0o666)
    state = ClusterState("digits")
    state.make()
    state.journal.record("up")
    assert stat.S_IMODE(state.dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((state.dir / "journal.jsonl").stat().st_mode) == 0o600


def test_a_report_is_written_through_no_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "report.html").symlink_to(victim)
    with pytest.raises(UsageError, match="cannot be written"):
        write_report(tmp_path / "report.html", "x")
    (tmp_path / "other.html").write_text("old")
    write_report(tmp_path / "other.html", "new")
    assert (tmp_path / "other.html").read_text() == "new"
    assert victim.read_text() == "mine\n"
