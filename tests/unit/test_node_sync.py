"""The workspace holds what the laptop has, and a sync harms nothing else."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node.run.sync import Entry, Sync, check_wanted


class Laptop:
    """Syncs a set of files into a workspace."""

    def __init__(self, base: Path) -> None:
        self.workspace = base / "workspace"
        self.record = base / "sync.json"

    def sync(self, files: dict[str, str]) -> list[str]:
        """The paths that were sent."""
        entries = [self.entry(path, text) for path, text in files.items()]
        sync = Sync(workspace=self.workspace, record=self.record, entries=entries)
        wanted = [entries[index] for index in sync.plan()]
        for each in wanted:
            sync.put(each, io.BytesIO(files[each.path].encode()))
        sync.commit()
        return [each.path for each in wanted]

    @staticmethod
    def entry(path: str, text: str) -> Entry:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Entry.parse({"path": path, "size": len(text), "mode": 0o644, "sha256": digest})

    def tree(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.workspace)): path.read_text()
            for path in self.workspace.rglob("*")
            if path.is_file() and not path.is_symlink()
        }


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path)


def test_only_what_changed_is_sent_again(laptop: Laptop) -> None:
    assert laptop.sync({"train.py": "1", "lib/model.py": "2"}) == ["train.py", "lib/model.py"]
    assert laptop.sync({"train.py": "1", "lib/model.py": "2"}) == []
    assert laptop.sync({"train.py": "1", "lib/model.py": "3"}) == ["lib/model.py"]
    assert laptop.tree() == {"train.py": "1", "lib/model.py": "3"}


def test_what_is_no_longer_in_the_project_is_deleted_with_its_empty_folders(laptop: Laptop) -> None:
    laptop.sync({"train.py": "1", "lib/deep/model.py": "2"})

    laptop.sync({"train.py": "1"})

    assert sorted(path.name for path in laptop.workspace.iterdir()) == ["train.py"]


def test_a_file_that_was_changed_on_the_node_is_put_right(laptop: Laptop) -> None:
    laptop.sync({"train.py": "right"})
    (laptop.workspace / "train.py").write_text("wrong")

    assert laptop.sync({"train.py": "right"}) == ["train.py"]
    assert laptop.tree() == {"train.py": "right"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "", "a/\0b", "."])
def test_a_path_that_leaves_the_workspace_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="not a path inside the project"):
        Entry.parse({"path": path, "size": 0, "mode": 0o644, "sha256": ""})


@pytest.mark.parametrize(
    ("path", "target"), [("a", "/etc"), ("a", ".."), ("d/a", "../../x"), ("a", "b/../../c"), ("a", "")]
)
def test_a_link_that_leaves_the_workspace_is_refused(path: str, target: str) -> None:
    with pytest.raises(UsageError, match="leads out of the project"):
        Entry.parse({"path": path, "link": target})


def test_nothing_is_written_through_a_link_that_the_job_made(laptop: Laptop, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    laptop.sync({"train.py": "1"})
    (laptop.workspace / "lib").symlink_to(outside)

    with pytest.raises(UsageError, match="not a folder on the node"):
        laptop.sync({"train.py": "1", "lib/model.py": "2"})

    assert list(outside.iterdir()) == []


def test_nothing_is_deleted_through_a_link_that_the_job_made(laptop: Laptop, tmp_path: Path) -> None:
    laptop.sync({"lib/model.py": "2"})
    (laptop.workspace / "lib").rename(tmp_path / "outside")
    (laptop.workspace / "lib").symlink_to(tmp_path / "outside")

    laptop.sync({})

    assert (tmp_path / "outside/model.py").read_text() == "2"


def test_bytes_that_are_not_the_announced_ones_replace_nothing(laptop: Laptop) -> None:
    laptop.sync({"train.py": "old"})
    sync = Sync(workspace=laptop.workspace, record=laptop.record, entries=[laptop.entry("train.py", "new")])
    assert sync.plan() == [0]

    with pytest.raises(NodeError, match="changed while it was sent"):
        sync.put(laptop.entry("train.py", "new"), io.BytesIO(b"torn"))

    assert laptop.tree() == {"train.py": "old"}


def test_a_sync_that_was_cut_off_is_finished_by_the_next_one(laptop: Laptop) -> None:
    laptop.sync({"old.py": "0"})
    files = {"a.py": "1", "b.py": "2"}
    entries = [laptop.entry(path, text) for path, text in files.items()]
    sync = Sync(workspace=laptop.workspace, record=laptop.record, entries=entries)
    sync.plan()
    sync.put(entries[0], io.BytesIO(b"1"))
    with pytest.raises(NodeError, match=r"b\.py was not sent"):
        sync.commit()
    sync.abandon()

    assert laptop.sync(files) == ["b.py"]
    laptop.sync({})
    assert laptop.tree() == {}


@pytest.mark.parametrize(
    "answer",
    [
        None, {}, {"want": None}, {"want": "0"}, {"want": {"0": 1}}, {"want": [3]}, {"want": [-1]}, {"want": [0, 0]},
        {"want": [True]}, {"want": [0.0]}, {"want": ["0"]}, {"want": [[0]]}, {"want": [10**400]}, {"want": 3},
    ],
)  # fmt: skip
def test_a_node_gets_only_files_that_it_was_told_of_and_each_once(answer: Any) -> None:
    with pytest.raises(NodeError, match="node n1 asks for files"):
        check_wanted(answer, node="n1", files=3)


def test_a_link_that_a_rank_left_for_the_next_sync_leads_nowhere(laptop: Laptop) -> None:
    outside = laptop.workspace.parent / "outside"
    outside.mkdir()
    (outside / "program").write_text("root's")
    (outside / "file").symlink_to("program")
    laptop.workspace.mkdir()
    (laptop.workspace / ".hvdcloud-staging").symlink_to(outside)
    laptop.sync({"train.py": "1"})
    assert (outside / "program").read_text() == "root's"
    assert laptop.tree() == {"train.py": "1"}
