"""Checkpoints of two nodes whose ranks have ended, at the end of a run or before Horovod is started again."""

from __future__ import annotations

import os
import queue
import resource
from pathlib import Path

import pytest

from hvdcloud.node import paths
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads import loop
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.runs.reports import UploadReport
from tests.support.harness import DEADLINE

RUN = "20261121-101112-abcdef"


class Node:
    """One machine of a run. Only one at a time can be worked on: the environment names it."""

    def __init__(self, root: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root / f"node-{number}"
        self._monkeypatch = monkeypatch
        with self:
            paths.checkpoints_dir(RUN).mkdir(parents=True)
        self.upload_loop = UploadLoop(
            Spec.from_mapping(
                {"run": RUN, "cluster": "digits", "node": number, "name": f"digits-{number}", "keep_every": 1,
                 "bucket": (root / "bucket").as_uri(), "slots": 1, "cores": 1, "command": ["true"]}
            )
        )  # fmt: skip

    def __enter__(self) -> Node:
        self._monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(self._root))
        return self

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.delenv("HVDCLOUD_NODE_ROOT")

    def write(self, name: str, data: bytes, *, modified: float) -> None:
        with self:
            path = paths.checkpoints_dir(RUN) / name
            path.write_bytes(data)
            os.utime(path, (modified, modified))

    def flush(self) -> list[str]:
        with self:
            return list(self.upload_loop.flush_now().errors)

    def gather(self) -> str:
        with self:
            return self.upload_loop.gather()

    def finish(self) -> UploadReport:
        with self:
            return self.upload_loop.finish()

    def is_complete(self) -> bool:
        with self:
            return loop.is_complete(RUN)

    def files(self) -> dict[str, bytes]:
        with self:
            return {path.name: path.read_bytes() for path in paths.checkpoints_dir(RUN).iterdir()}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, Node]:
    return Node(tmp_path, 0, monkeypatch), Node(tmp_path, 1, monkeypatch)


def test_what_could_not_be_uploaded_is_not_replaced_by_something_older(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    head, worker = nodes
    worker.write("last", b"old", modified=100)
    assert worker.flush() == []
    in_the_way = tmp_path / "bucket" / "digits" / RUN / "last"
    in_the_way.mkdir()
    head.write("last", b"new", modified=200)
    assert "last" in head.gather()
    assert head.files() == {"last": b"new"}
    in_the_way.rmdir()
    assert head.gather() == ""
    assert worker.gather() == ""
    assert head.files() == worker.files() == {"last": b"new"}


def test_a_run_is_complete_once_everything_is_in_the_bucket(nodes: tuple[Node, Node]) -> None:
    head, _ = nodes
    head.write("last", b"weights", modified=100)
    assert not head.is_complete()
    assert head.finish() == UploadReport(complete=True, files=1, pending=[], errors=[], skipped=[], left_out=[])
    assert head.is_complete()


def test_a_node_that_leaves_uploads_at_once_and_says_so(nodes: tuple[Node, Node]) -> None:
    head, _ = nodes
    reports: queue.SimpleQueue[UploadReport] = queue.SimpleQueue()
    with head:
        head.upload_loop.start()
        head.upload_loop.hurry(reports.put)
        (paths.checkpoints_dir(RUN) / "last").write_bytes(b"weights")
        while not reports.get(timeout=DEADLINE).files:
            continue
        assert head.upload_loop.finish().complete


def test_a_file_that_is_still_open_for_writing_keeps_a_run_from_being_complete(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No second scan would begin before the deadline.
    monkeypatch.setattr("hvdcloud.node.uploads.uploader._WAITS", (2 * loop.FLUSH_SECONDS,))
    head, _ = nodes
    head.write("last", b"half", modified=100)
    with head:
        file = paths.checkpoints_dir(RUN) / "last"
    with file.open("ab"):
        report = head.finish()
    assert (report.complete, list(report.pending), list(report.errors)) == (False, ["last"], [])
    assert not head.is_complete()


def test_a_file_that_the_bucket_does_not_take_keeps_a_run_from_being_complete(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    head, _ = nodes
    (tmp_path / "bucket" / "digits" / RUN / "last").mkdir(parents=True)
    head.write("last", b"weights", modified=100)
    report = head.finish()
    assert (report.complete, list(report.pending), len(report.errors)) == (False, [], 1)
    assert not head.is_complete()


def test_a_report_that_can_not_be_written_is_not_that_of_before(nodes: tuple[Node, Node]) -> None:
    """The agent that follows a restart finds more to upload on a disk that is full."""
    head, _ = nodes
    assert head.finish().complete
    assert head.is_complete()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with head:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            loop.write_report(RUN, UploadReport(pending=["last"]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not head.is_complete()
