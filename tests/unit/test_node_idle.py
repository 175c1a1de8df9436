"""When nodes on which nothing goes on end themselves: what counts as something, and what each node decides."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdcloud.node import paths
from hvdcloud.node.boot import activity, idle
from hvdcloud.node.boot.idle import Answer, Verdict, Watch, verdict
from hvdcloud.node.files import Lock
from hvdcloud.node.mesh import tcp
from tests.support.nodes import RUN, NodeCluster, node_cluster

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when
   0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   1: 020011AC:08AE 010011AC:C350 01 00000000:00000000 02:000A9F1C 00000000
   2: 020011AC:08AE 030011AC:C351 06 00000000:00000000 02:000A9F1C 00000000
   3: 020011AC:C352 040011AC:08AE 01 00000000:00000000 02:000A9F1C 00000000
   4: 020011AC:0016 050011AC:C353 01 00000000:00000000 02:000A9F1C 00000000
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:08AE 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000
   1: 0000000000000000FFFF0000020011AC:08AE 0000000000000000FFFF0000047100CB:D431 01 00000000:00000000 02:000A9F1C
   2: B80D0120000000000000000001000000:08AE B80D0120000000000000000002000000:D432 01 00000000:00000000 02:000A9F1C
"""
LIMIT = 1800.0
IDLE = Answer(idle=LIMIT, complete=True)
BUSY = Answer(idle=10.0, complete=True)
HOLDS_FILES = Answer(idle=LIMIT, complete=False)


@pytest.fixture
def node_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def test_callers_are_those_with_an_established_connection_to_our_sshd() -> None:
    # Not who listens, has left (TIME_WAIT), was called by us, or calls another port.
    assert tcp.callers_on(2222, [TCP]) == {"172.17.0.1"}
    assert tcp.callers_on(2222, [TCP6]) == {"203.0.113.4", "2001:db8::2"}
    assert tcp.callers_on(2222, [TCP, TCP6, ""]) == {"172.17.0.1", "203.0.113.4", "2001:db8::2"}


@pytest.mark.parametrize(
    ("own", "head", "peers", "expected"),
    [
        pytest.param(BUSY, True, {}, Verdict.WAIT, id="it is in use"),
        pytest.param(Answer(idle=None, complete=True), True, {}, Verdict.WAIT, id="nobody has looked yet"),
        pytest.param(HOLDS_FILES, True, {}, Verdict.FLUSH, id="its checkpoints are nowhere else"),
        pytest.param(IDLE, True, {}, Verdict.END, id="a node alone, or not yet in a cluster"),
        pytest.param(IDLE, True, {"n1": IDLE, "n2": IDLE}, Verdict.END, id="all are idle"),
        pytest.param(IDLE, True, {"n1": IDLE, "n2": BUSY}, Verdict.WAIT, id="another node is in use"),
        pytest.param(IDLE, True, {"n1": HOLDS_FILES}, Verdict.WAIT, id="another node holds checkpoints"),
        pytest.param(IDLE, True, {"n1": None, "n2": IDLE}, Verdict.END, id="another node does not answer"),
        pytest.param(IDLE, True, {"n1": Answer(idle=None, complete=True)}, Verdict.END, id="nobody looks there"),
        pytest.param(IDLE, False, {"n0": IDLE}, Verdict.WAIT, id="it is for the head to decide"),
        pytest.param(IDLE, False, {"n0": BUSY}, Verdict.WAIT, id="the head is in use"),
        pytest.param(IDLE, False, {"n0": None}, Verdict.END, id="the head is dead"),
        pytest.param(HOLDS_FILES, False, {"n0": None}, Verdict.FLUSH, id="the head is dead, but there are checkpoints"),
    ],
)
def test_what_a_node_decides(own: Answer, head: bool, peers: dict[str, Answer | None], expected: Verdict) -> None:
    assert verdict(own, limit=LIMIT, head=head, peers=peers) is expected


def test_a_run_and_its_agent_are_activity(node_root: Path) -> None:
    assert activity.now() is None
    agent = Lock(paths.agent_lock(RUN))
    assert agent.acquire({"pid": os.getpid()})
    assert activity.now() == f"the agent of run {RUN}"
    supervisor = Lock(paths.supervisor_lock())
    assert supervisor.acquire({"run": RUN, "pid": os.getpid()})
    assert activity.now() == f"run {RUN}"
    supervisor.release()
    agent.release()
    assert activity.now() is None


def test_what_the_laptop_asks_for_is_activity_and_what_nodes_ask_is_not(cluster: NodeCluster) -> None:
    (cluster.root("n0") / "run/hvdcloud").mkdir(parents=True)
    file = cluster.root("n0") / "run/hvdcloud/activity"
    assert cluster.verb("n0", "idle") == {"idle": None, "complete": True}
    assert not file.exists()
    cluster.verb("n0", "state")
    seen = json.loads(file.read_text())["seen"]
    assert 0 <= time.monotonic() - seen < 30
    answer = cluster.verb("n0", "idle")
    assert 0 <= answer["idle"] < 30
    assert json.loads(file.read_text())["seen"] == seen


def test_a_node_says_that_it_holds_what_is_not_in_the_bucket(cluster: NodeCluster) -> None:
    cluster.start_run("import os; open(os.environ['HVDCLOUD_CHECKPOINT_DIR'] + '/w.pt', 'w').write('w')")
    during = cluster.verb("n0", "idle")
    assert during == {"idle": 0.0, "complete": False} or cluster.state()["state"] == "done"
    cluster.wait_done()
    assert cluster.verb("n0", "idle")["complete"]
    (cluster.run_dir() / "uploads.json").unlink()
    assert not cluster.verb("n0", "idle")["complete"]


def test_the_watch_acts_once_the_limit_is_over_and_not_before(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "posix_spawn", lambda _, argv, *__, **___: started.append(argv) or 4711)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = Watch(120.0)

    def looks(seconds: float) -> int:
        for _ in range(int(seconds / 15)):
            clock[0] += 15.0
            watch.look()
        return len(started)

    assert watch.seconds() == 15.0
    assert looks(105) == 0
    assert looks(15) == 1
    assert started[0][-1] == "end-if-idle"
    assert looks(600) == 1, "one at a time"
    watch.ended({1, 4711})
    assert looks(15) == 2
    watch.ended({4711})
    activity.mark()
    assert looks(105) == 2, "somebody came"


def test_a_node_that_was_frozen_waits_once_more(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(os, "posix_spawn", lambda *_, **__: started.append("one") or 4711)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = Watch(120.0)
    clock[0] += 3600.0
    watch.look()
    assert started == []
    for _ in range(8):
        clock[0] += 15.0
        watch.look()
    assert started == ["one"]


def test_a_watch_that_cannot_look_says_so_and_goes_on(
    node_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Watch(0.4)
    monkeypatch.setattr(activity, "now", lambda: 1 / 0)
    time.sleep(watch.seconds())
    watch.look()
    assert "could not look for activity: ZeroDivisionError" in capsys.readouterr().err


def test_the_limit_is_what_the_container_was_told(monkeypatch: pytest.MonkeyPatch, node_root: Path) -> None:
    monkeypatch.delenv(idle.LIMIT_VARIABLE, raising=False)
    assert Watch.wanted() is None
    monkeypatch.setenv(idle.LIMIT_VARIABLE, "")
    assert Watch.wanted() is None
    monkeypatch.setenv(idle.LIMIT_VARIABLE, "1800")
    watch = Watch.wanted()
    assert watch is not None
    assert watch.limit == 1800.0
    monkeypatch.setenv(idle.LIMIT_VARIABLE, "soon")
    with pytest.raises(ValueError, match="soon"):
        Watch.wanted()
