"""What ranks write of how long they wait for each other, read by the nodes' agents.

The program writes what our Horovod writes (dockerfiles/patches), and its ranks wait for each other's files. What
Horovod counts: tests/e2e/test_keras.py and test_plain_ranks.py.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from hvdcloud.node.monitor import waits
from hvdcloud.runs.reports import RankWaits
from hvdcloud.runs.state import RunState
from tests.support.nodes import RUN, NodeCluster

SLOW_RANK_1 = """
import json, os, pathlib, time

rank, meeting = int(os.environ["HOROVOD_RANK"]), pathlib.Path(os.environ["MEETING"])
began, waited = time.perf_counter(), 0.0
for step in range(15):
    time.sleep(0.2 if rank == 1 else 0.01)
    asks = time.perf_counter()
    (meeting / f"{step}-{rank}").touch()
    while len(list(meeting.glob(f"{step}-*"))) < 2:
        time.sleep(0.002)
    waited += time.perf_counter() - asks
    record = {"rank": rank, "waited": waited, "seconds": time.perf_counter() - began}
    pathlib.Path(os.environ["HVDCLOUD_WAITS"]).write_text(json.dumps(record).ljust(256))
"""


def test_the_rank_that_the_others_wait_for_has_waited_least(cluster: NodeCluster) -> None:
    meeting = cluster.base / "meeting"
    meeting.mkdir()
    cluster.start_run(textwrap.dedent(SLOW_RANK_1), env={"MEETING": str(meeting)})
    state = RunState.from_json(cluster.wait_done())
    assert state.result == "succeeded", cluster.log()
    fast, slow = state.waits
    assert [(each.rank, each.node) for each in state.waits] == [(0, "n0"), (1, "n1")]
    assert slow.share is not None
    assert fast.share is not None
    assert fast.share > 2 * slow.share
    assert fast.recently == pytest.approx(fast.share, abs=0.01)


@pytest.mark.parametrize(
    "written",
    [b"", b"no JSON", b'{"rank": "x", "waited": 1, "seconds": 2}', b'{"rank": 1, "waited": 1e300, "seconds": 2}', b"["],
)
def test_what_a_rank_writes_instead_of_its_counts_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes
) -> None:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    folder = waits.folder(RUN)
    folder.mkdir(parents=True)
    good = b'{"rank": 0, "waited": 3.0, "seconds": 4.0}'
    (folder / "100.json").write_bytes(good)
    (folder / "101.json").write_bytes(written)
    # A link would have root read another file; a pipe would never answer.
    (tmp_path / "elsewhere").write_bytes(good)
    (folder / "102.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "103.json")
    reader = waits.WaitsReader(RUN, "n0")
    assert reader.read() == [RankWaits(rank=0, node="n0", waited=3.0, seconds=4.0, recently=0.75)]
    assert reader.read() == []
