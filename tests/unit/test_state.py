"""What this machine remembers of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.cluster.files import default_bucket, write_private
from hvdcloud.cluster.journal import Journal
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.cluster.state import ClusterState

pytestmark = pytest.mark.usefixtures("state_root")


def test_only_the_owner_can_read_keys() -> None:
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


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", "{}", "[" * 100_000),
        *(
            '{"id": "abc", "nodes": [{}]}',
            '{"id": "abc", "size": "many"}',
            '{"id": "abc", "key of another version": 1}',
        ),
    ],
)
def test_a_record_that_cannot_be_read_is_no_record(content: str) -> None:
    state = ClusterState("digits")
    state.make()
    (state.dir / "cluster.json").write_text(content)
    assert state.load() is None


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
    [((), "b"), (("created",), None), (("up-done",), None), (("up-undone",), None)],
)
def test_the_journal_knows_of_an_up_that_was_cut_off(ending: tuple[str, ...], cut_off: str | None) -> None:
    state = ClusterState("digits")
    state.make()
    assert state.journal.cut_off_create() is None
    for event, cluster_id in (("up", "a"), ("up-done", "a"), ("down-done", "a"), ("up", "b")):
        state.journal.record(event, cluster_id=cluster_id)
    for event in ending:
        state.journal.record(event, cluster_id="b")
    assert state.journal.cut_off_create() == cut_off
