"""What the bucket knows of a run that has ended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hvdcloud.checkpoints.manifest import log_name, state_name
from hvdcloud.runs import archive
from hvdcloud.runs.state import RunState
from hvdcloud.storage.folder import FolderBucket

CLUSTER, RUN = "digits", "20261126-101112-abcdef"


def test_the_end_of_a_run_is_fetched_until_the_bucket_knows_it(tmp_path: Path) -> None:
    bucket = FolderBucket(tmp_path)
    fetched: list[str] = []

    def fetch() -> None:
        fetched.append(RUN)
        if len(fetched) == 2:
            ended = RunState(run=RUN, state="done", result="succeeded")
            bucket.write(state_name(CLUSTER, RUN), json.dumps(ended.to_json()).encode())

    archive.wait(bucket, cluster=CLUSTER, run_id=RUN, fetch=fetch)
    assert len(fetched) == 2
    archive.wait(bucket, cluster=CLUSTER, run_id=RUN, fetch=fetch)
    assert len(fetched) == 2


def endless(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(1 << 40)


def test_a_run_whose_state_is_too_large_is_shown_as_such_and_hides_no_other(tmp_path: Path) -> None:
    bucket, other = FolderBucket(tmp_path), "20261126-101113-abcdef"
    bucket.write(state_name(CLUSTER, other), json.dumps(RunState(run=other, state="done").to_json()).encode())
    endless(tmp_path / state_name(CLUSTER, RUN))
    bad, good = archive.states(bucket, cluster=CLUSTER, cluster_id="abcdef")
    assert (bad.run, bad.done, good.run) == (RUN, True, other)
    assert f"{state_name(CLUSTER, RUN)} has more than the" in bad.reason


def test_of_a_log_without_an_end_the_last_part_is_read_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_LOG", 1 << 20)
    bucket = FolderBucket(tmp_path)
    bucket.write(state_name(CLUSTER, RUN), json.dumps(RunState(run=RUN, state="done").to_json()).encode())
    path = tmp_path / log_name(CLUSTER, RUN)
    endless(path)
    with path.open("ab") as file:
        file.write(b"[0] the end\n")
    found = archive.read(bucket, cluster=CLUSTER, cluster_id=None, run_id=None)
    assert found is not None
    first, *pieces = found[1]
    assert first == b"[hvdcloud] the log has 1099511627788 bytes; these are its last\n"
    assert b"".join(pieces).endswith(b"[0] the end\n")
    assert sum(map(len, pieces)) == 1 << 20
    # A writer that moves the end on and on does not keep the reader.
    found = archive.read(bucket, cluster=CLUSTER, cluster_id=None, run_id=None, start=(1 << 40) - 10)
    assert found is not None
    os.truncate(path, 1 << 41)
    assert sum(map(len, found[1])) <= 2 << 20
