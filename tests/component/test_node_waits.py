"""How long ranks wait for each other, counted in a real Python by what the node program puts before their programs.

Horovod's library is a stand-in in the project's code, whose ranks wait for each other's files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hvdcloud.node.monitor import waits
from hvdcloud.node.rank_hook import sitecustomize
from hvdcloud.runs.reports import RankWaits
from hvdcloud.runs.state import RunState
from tests.support.nodes import RUN, NodeCluster, node_cluster

LIBRARY = """
import os, pathlib, time

def horovod_torch_wait_and_clear(handle):
    meeting = pathlib.Path(os.environ["MEETING"])
    (meeting / f"{handle}-{os.environ['HOROVOD_RANK']}").touch()
    while len(list(meeting.glob(f"{handle}-*"))) < 2:
        time.sleep(0.002)
    return handle
"""
CODE = {
    "horovod/__init__.py": "",
    "horovod/torch/__init__.py": "import os\nfrom horovod.torch import mpi_lib_v2\n"
    "def rank():\n    return int(os.environ['HOROVOD_RANK'])\n",
    "horovod/torch/mpi_lib_v2.py": LIBRARY,
    "sitecustomize.py": "import builtins\nbuiltins.of_the_project = True\n",
}
SLOW_RANK_1 = """
import os, time
import horovod.torch as hvd

for step in range(15):
    time.sleep(0.2 if hvd.rank() == 1 else 0.01)
    assert hvd.mpi_lib_v2.horovod_torch_wait_and_clear(step) == step
print("variables", sorted(name for name in os.environ if name == "HVDCLOUD_WAITS"), of_the_project)
"""


def test_a_rank_that_writes_nonsense_is_not_counted_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    # A file that is named by a process that lives is read, also where it says nothing new.
    file = waits.folder(RUN) / f"{os.getpid()}.json"
    file.parent.mkdir(parents=True)
    reader = waits.WaitsReader(RUN, "n0")
    for seconds, count in ((1000.0, 1), (2000.0, 1), (1000.0, 0), (float("nan"), 0), (-1.0, 0), (2001.0, 1)):
        file.write_text(json.dumps({"rank": 0, "waited": 1.0, "seconds": seconds}))
        assert len(reader.read()) == count, seconds


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def train(cluster: NodeCluster, env: Mapping[str, str]) -> RunState:
    """A run of two ranks, of which rank 1 is slow."""
    meeting = cluster.base / "meeting"
    meeting.mkdir()
    workspace = {"PYTHONPATH": str(cluster.root("n0") / "workspace")}
    cluster.start_run(textwrap.dedent(SLOW_RANK_1), code=CODE, env={"MEETING": str(meeting), **workspace, **env})
    state = RunState.from_json(cluster.wait_done())
    assert state.result == "succeeded", cluster.log()
    return state


def test_the_rank_that_the_others_wait_for_has_waited_least(cluster: NodeCluster) -> None:
    state = train(cluster, {})
    fast, slow = state.waits
    assert [(each.rank, each.node) for each in state.waits] == [(0, "n0"), (1, "n1")]
    assert slow.share is not None
    assert fast.share is not None
    assert fast.share > 2 * slow.share
    assert fast.recently == pytest.approx(fast.share, abs=0.01)
    # The project's own sitecustomize, which ours hides, has run as well.
    assert "[0] variables ['HVDCLOUD_WAITS'] True" in cluster.log()


def test_nothing_is_counted_where_the_project_does_not_want_it(cluster: NodeCluster) -> None:
    state = train(cluster, {waits.OFF_VARIABLE: "0"})
    assert state.waits == []
    assert "[0] variables [] True" in cluster.log()
    assert not (cluster.run_dir() / "waits").exists()


def test_a_child_that_a_rank_has_forked_writes_no_counts(tmp_path: Path) -> None:
    program = """
        import os, runpy, sys
        counts = runpy.run_path(sys.argv[1])["Waits"]("counts")
        counts.rank, counts.calls = 0, 1
        counts.close()
        if os.fork() == 0:
            counts.calls = 2
            sys.exit(counts.close())
        os.wait()
    """
    (tmp_path / "counts").touch()
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), sitecustomize.__file__], cwd=tmp_path, check=True, timeout=60
    )
    assert json.loads((tmp_path / "counts").read_text())["calls"] == 1


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
