"""What the bucket knows of a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path

from hvdcloud.checkpoints.manifest import state_name
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
