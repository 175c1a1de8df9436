"""What this machine remembers of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.files import default_bucket, state_root, write_private
from hvdcloud.cluster.journal import Journal
from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.cluster.state import ClusterState


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_folder_follows_the_xdg_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVDCLOUD_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_root() == tmp_path / "xdg" / "hvdcloud"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_root() == tmp_path / ".local" / "state" / "hvdcloud"


def test_only_the_owner_can_read_keys(own_root: Path) -> None:
    state = ClusterState("digits")
    state.make()
    write_private(state.key_file, "secret")
    assert state.dir.stat().st_mode & 0o777 == 0o700
    assert state.key_file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in state.dir.iterdir()] == ["id_ed25519"], "no temporary file stays behind"


def test_the_journal_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.record("up", cluster_id="abc")
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"event": "up-do')
    assert [entry["event"] for entry in journal.entries()] == ["up"]
    assert journal.unfinished_up("abc")
    assert not journal.unfinished_up("def")


def test_a_finished_up_is_not_unfinished(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.record("up", cluster_id="abc")
    journal.record("up-done", cluster_id="abc")
    assert not journal.unfinished_up("abc")


def test_a_record_that_cannot_be_read_is_no_record() -> None:
    state = ClusterState("digits")
    state.make()
    assert state.load() is None
    state.save(ClusterRecord(id="abc"))
    assert state.load() == ClusterRecord(id="abc")
    for content in ("{", "[]", "{}", '{"id": "abc", "nodes": [{}]}', '{"id": "abc", "size": "many"}'):
        (state.dir / "cluster.json").write_text(content)
        assert state.load() is None


EARLIER: dict[str, Any] = {"id": "abc", "nodes": [{"name": "digits-0", "cores": 4, "gpus": 1, "interface": "eth0"}]}


def test_a_record_of_an_earlier_version_says_what_it_can() -> None:
    state = ClusterState("digits")
    state.make()
    (state.dir / "cluster.json").write_text(json.dumps(EARLIER))
    head = MemberRecord(name="digits-0", cores=4, gpus=1, interface="eth0")
    assert state.load() == ClusterRecord(id="abc", size=1, nodes=(head,))


def test_what_a_later_version_has_written_into_the_record_stays() -> None:
    state = ClusterState("digits")
    state.make()
    node = {**EARLIER["nodes"][0], "boot": {"host": 1.5}, "joined": 2.5, "zone": "z"}
    later = {"id": "abc", "created": "c", "image": "i", "bucket": "b", "size": 2, "nodes": [node], "runs": [], "x": {}}
    (state.dir / "cluster.json").write_text(json.dumps(later))
    state.update(lambda record: replace(record, runs=("r1", "r2")))
    assert json.loads((state.dir / "cluster.json").read_text()) == {
        **later,
        "project": "",
        "settings": {},
        "data": {},
        "runs": ["r1", "r2"],
    }


def test_forgetting_keeps_the_journal_the_ledger_and_the_bucket() -> None:
    state = ClusterState("digits")
    state.make()
    bucket = Path(default_bucket("digits").removeprefix("file://"))
    bucket.mkdir()
    state.journal.record("up")
    state.verified_files.write_text("{}")
    write_private(state.key_file, "secret")
    state.save(ClusterRecord(id="abc"))
    state.forget()
    assert sorted(path.name for path in state.dir.iterdir()) == ["bucket", "journal.jsonl", "verified.json"]


@pytest.mark.parametrize(
    ("ending", "cut_off"),
    [((), "b"), (("create",), "b"), (("created",), None), (("up-done",), None), (("up-undone",), None)],
)
def test_the_journal_knows_of_a_recent_up_that_was_cut_off(ending: tuple[str, ...], cut_off: str | None) -> None:
    state = ClusterState("digits")
    state.make()
    assert state.journal.cut_off_create(seconds=60) is None
    for event, cluster_id in (("up", "a"), ("up-done", "a"), ("down-done", "a"), ("up", "b"), ("create", "b")):
        state.journal.record(event, cluster_id=cluster_id)
    for event in ending:
        state.journal.record(event, cluster_id="b")
    assert state.journal.cut_off_create(seconds=60) == cut_off
    assert state.journal.cut_off_create(seconds=0) is None
