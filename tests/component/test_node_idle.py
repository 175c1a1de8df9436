"""When idle nodes end themselves: what counts as activity, and what each node decides."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdcloud.node import paths
from hvdcloud.node.boot import activity, entrypoint, idle, time_limit
from hvdcloud.node.boot.idle import Answer, may_end
from hvdcloud.node.files import Lock, write_json
from hvdcloud.node.mesh.nodes import Peer, remember
from hvdcloud.node.mesh.ssh import NODE_PROGRAM
from tests.support.nodes import RUN, NodeCluster

LIMIT = 1800.0
IDLE = Answer(idle=LIMIT, complete=True)
BUSY = Answer(idle=10.0, complete=True)
HOLDS_FILES = Answer(idle=LIMIT, complete=False)


@pytest.mark.parametrize(
    ("own", "head", "peers", "expected"),
    [
        pytest.param(BUSY, True, {}, False, id="it is in use"),
        pytest.param(Answer(idle=None, complete=True), True, {}, False, id="nobody has looked yet"),
        pytest.param(HOLDS_FILES, True, {}, False, id="its checkpoints are nowhere else"),
        pytest.param(IDLE, True, {}, True, id="a node alone, or not yet in a cluster"),
        pytest.param(IDLE, True, {"n1": IDLE, "n2": IDLE}, True, id="all are idle"),
        pytest.param(IDLE, True, {"n1": IDLE, "n2": BUSY}, False, id="another node is in use"),
        pytest.param(IDLE, True, {"n1": HOLDS_FILES}, False, id="another node holds checkpoints"),
        pytest.param(IDLE, True, {"n1": None, "n2": IDLE}, True, id="another node does not answer"),
        pytest.param(IDLE, True, {"n1": Answer(idle=None, complete=True)}, True, id="nobody looks there"),
        pytest.param(IDLE, False, {"n0": IDLE}, False, id="it is for the head to decide"),
        pytest.param(IDLE, False, {"n0": BUSY}, False, id="the head is in use"),
        pytest.param(IDLE, False, {"n0": None}, True, id="the head is dead"),
        pytest.param(HOLDS_FILES, False, {"n0": None}, False, id="the head is dead, but there are checkpoints"),
    ],
)
def test_what_a_node_decides(own: Answer, head: bool, peers: dict[str, Answer | None], expected: bool) -> None:
    assert may_end(own, limit=LIMIT, head=head, peers=peers) is expected


def test_a_run_and_its_agent_are_activity(node_root: Path) -> None:
    assert not activity.is_there()
    agent = Lock(paths.agent_lock(RUN))
    assert agent.acquire({"pid": os.getpid()})
    assert activity.is_there()
    agent.release()
    assert not activity.is_there()
    supervisor = Lock(paths.supervisor_lock())
    assert supervisor.acquire({"run": RUN, "pid": os.getpid()})
    assert activity.is_there()
    supervisor.release()
    assert not activity.is_there()


def test_only_callers_from_outside_the_cluster_are_activity(node_root: Path) -> None:
    remember([Peer("n0", "127.0.0.2", 22, ""), Peer("n1", "127.0.0.3", 22, "")])
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as sshd,
        socket.create_server(("127.0.0.1", 0)) as another,
    ):
        address = ("127.0.0.1", sshd.getsockname()[1])
        write_json(paths.node_file(), {"ssh_port": address[1]})
        with (
            socket.create_connection(another.getsockname(), source_address=("127.0.0.9", 0)),
            socket.create_connection(address, source_address=("127.0.0.3", 0)),
        ):
            assert not activity.is_there()
            with socket.create_connection(address, source_address=("127.0.0.4", 0)):
                assert activity.is_there()
            assert not activity.is_there()


def test_what_the_laptop_asks_for_is_activity_and_what_nodes_ask_is_not(cluster: NodeCluster) -> None:
    (cluster.root("n0") / "run/hvdcloud").mkdir(parents=True)
    file = cluster.root("n0") / "run/hvdcloud/activity"
    assert cluster.verb("n0", "idle") == {"idle": None, "complete": True}
    assert not file.exists()
    cluster.verb("n0", "state")
    seen = json.loads(file.read_text())["seen"]
    assert time.monotonic() - seen >= 0
    answer = cluster.verb("n0", "idle")
    assert 0 <= answer["idle"] < 30
    assert json.loads(file.read_text())["seen"] == seen


def test_a_node_says_that_it_holds_what_is_not_in_the_bucket(cluster: NodeCluster) -> None:
    enough = cluster.base / "enough"
    cluster.start_run(
        "import os, time\n"
        "open(os.environ['HVDCLOUD_CHECKPOINT_DIR'] + '/w.pt', 'w').write('w')\n"
        f"while not os.path.exists({str(enough)!r}):\n"
        "    time.sleep(0.01)\n"
    )
    assert cluster.verb("n0", "idle") == {"idle": 0.0, "complete": False}
    assert last_words(cluster) == "False\n"
    enough.touch()
    cluster.wait_done()
    assert cluster.verb("n0", "idle")["complete"]
    assert last_words(cluster) == "True\n"
    (cluster.run_dir() / "uploads.json").unlink()
    assert not cluster.verb("n0", "idle")["complete"]
    assert last_words(cluster) == "False\n"


def last_words(cluster: NodeCluster) -> str:
    """What a container says of its checkpoints when it ends."""
    program = "from hvdcloud.node.uploads import drain; print(drain.is_all_in_bucket())"
    environment = cluster.environment("n0")
    return subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True).stdout


SSH = """
# Answers what the file $answers/NODE says, after what the shell script $answers/NODE.does does.
while [ "$1" != "${1#-}" ]; do
    case "$1" in -o) shift 2 ;; *) shift ;; esac
done
echo "$@" >>"$answers/asked"
case "$2" in *poweroff) exit ;; esac
[ ! -e "$answers/$1.does" ] || . "$answers/$1.does"
[ -e "$answers/$1" ] || exit 255
cat "$answers/$1"
"""


class Mesh:
    """The node n0 or n1 of three that were idle for longer than the limit, and what the other ones answer."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, me: str) -> None:
        self.root = root
        self._answers = root / "answers"
        ssh = root / "bin/ssh"
        for path in (self._answers, ssh.parent):
            path.mkdir()
        ssh.write_text(f"#!/bin/sh\nanswers={self._answers}\n{SSH}")
        ssh.chmod(0o755)
        self.ended: list[int] = []
        kill = os.kill

        def record(pid: int, number: int) -> None:
            """The first process of this machine is not a container's entrypoint."""
            if pid == 1:
                self.ended.append(number)
            else:
                kill(pid, number)

        monkeypatch.setattr(os, "kill", record)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        write_json(paths.node_file(), {"name": me})
        remember([Peer(name, "192.0.2.1", 22, "") for name in ("n0", "n1", "n2")])
        write_json(paths.activity_file(), {"seen": time.monotonic() - 60})

    def answer(self, node: str, text: str) -> None:
        (self._answers / node).write_text(text)

    def does(self, node: str, script: str) -> None:
        """In a shell, before it answers; without an answer it can't be reached."""
        (self._answers / f"{node}.does").write_text(script)

    def asked(self) -> list[str]:
        """Nodes, each with the verb that it was asked for."""
        lines = (self._answers / "asked").read_text().splitlines() if (self._answers / "asked").exists() else []
        return sorted(line.replace(f" {NODE_PROGRAM} ", " ") for line in lines)

    def decide(self) -> bool:
        """Whether this node ended itself."""
        ends = idle.end_if_idle(0.01)
        assert self.ended == [signal.SIGTERM] * ends
        return ends


IDLE_ANSWER, BUSY_ANSWER = '{"idle": 60, "complete": true}', '{"idle": 0, "complete": true}'


@pytest.fixture
def head(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> Mesh:
    return Mesh(node_root, monkeypatch, "n0")


@pytest.fixture
def worker(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> Mesh:
    return Mesh(node_root, monkeypatch, "n1")


def test_an_idle_head_ends_the_nodes_that_answered_and_itself(head: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    head.answer("n1", IDLE_ANSWER)
    assert head.decide()
    assert head.asked() == ["n1 idle", "n1 poweroff", "n2 idle"], "n2 may hold what is nowhere else"
    assert "idle for 1 min: no run, no SSH session; switching off" in capsys.readouterr().err


def test_a_node_that_hangs_does_not_keep_the_others(head: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_ANSWER_SECONDS", 0.1)
    head.does("n1", "exec sleep 600")
    assert head.decide()
    assert head.asked() == ["n1 idle", "n2 idle"]


def test_a_busy_node_keeps_the_cluster(head: Mesh) -> None:
    head.answer("n1", IDLE_ANSWER)
    head.answer("n2", BUSY_ANSWER)
    assert not head.decide()
    assert head.asked() == ["n1 idle", "n2 idle"]


@pytest.mark.parametrize("text", ["", "Traceback", "[]", '{"idle": 60}', '{"idle": 60, "complete": true, "new": 1}'])
def test_a_node_whose_answer_can_not_be_understood_keeps_the_cluster(head: Mesh, text: str) -> None:
    head.answer("n1", text)
    assert not head.decide()


def test_a_node_that_is_used_again_while_it_asks_the_others_stays(head: Mesh) -> None:
    head.answer("n1", IDLE_ANSWER)
    now = head.root / "now.json"
    write_json(now, {"seen": time.monotonic() + 3600})
    head.does("n1", f"cp {now} {paths.activity_file()}")
    assert not head.decide()
    assert head.asked() == ["n1 idle", "n2 idle"]


def test_a_node_with_checkpoints_that_are_nowhere_else_stays(head: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    paths.run_dir(RUN).mkdir(parents=True)
    assert not head.decide()
    assert head.asked() == []
    assert f"checkpoints of run {RUN} are not in the bucket yet: " in capsys.readouterr().err


@pytest.mark.parametrize("text", [IDLE_ANSWER, BUSY_ANSWER])
def test_a_head_that_answers_late_decides(worker: Mesh, text: str) -> None:
    later = worker.root / "later"
    later.write_text(text)
    worker.does("n0", f'[ "$(grep -c . "$answers/asked")" -lt 3 ] || cp {later} "$answers/n0"')
    assert not worker.decide()
    assert worker.asked() == ["n0 idle"] * 3


def test_a_node_ends_alone_where_the_head_is_dead(worker: Mesh) -> None:
    worker.answer("n2", IDLE_ANSWER)
    assert worker.decide()
    assert worker.asked() == ["n0 idle"] * 3


class Machine:
    """A machine on which time passes while the process that checks for activity sleeps.

    Attributes:
        asked: when it asked whether the node may end now; it may not.
        does: by the time, what else happens then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.asked: list[float] = []
        self.does: dict[float, Callable[[], object]] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)
        monkeypatch.setattr(idle, "end_if_idle", self._ask)

    def runs(self, seconds: float) -> list[float]:
        """What it asked in so many seconds, with a limit of 120 s."""
        self._until = self.now + seconds
        with pytest.raises(InterruptedError):
            idle.main(120.0)
        return self.asked

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.does.pop(self.now, lambda: None)()
        if self.now >= self._until:
            raise InterruptedError

    def _ask(self, limit: float) -> bool:
        assert limit == 120.0
        self.asked.append(self.now)
        return False


def test_a_node_decides_once_the_limit_is_over_and_not_before(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.runs(200.0) == [1120.0, 1150.0, 1180.0]


def test_a_node_whose_user_connects_waits_once_more(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.does[1105.0] = activity.mark
    assert machine.runs(220.0) == []


def test_a_node_that_was_frozen_waits_once_more(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)

    def freeze() -> None:
        machine.now += 3600.0

    machine.does[1015.0] = freeze
    assert machine.runs(3750.0) == [1015.0 + 3600.0 + 120.0]


def test_a_process_that_was_killed_does_not_begin_anew(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.runs(105.0) == []
    assert machine.runs(30.0) == [1120.0]


def test_the_entrypoint_starts_what_the_container_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(entrypoint.IDLE_VARIABLE, raising=False)
    monkeypatch.delenv(time_limit.VARIABLE, raising=False)
    assert entrypoint._limits() == []
    monkeypatch.setenv(entrypoint.IDLE_VARIABLE, "")
    assert entrypoint._limits() == []
    monkeypatch.setenv(entrypoint.IDLE_VARIABLE, "1800")
    monkeypatch.setenv(time_limit.VARIABLE, "3600")
    monkeypatch.setattr(time_limit, "now", lambda: 1000.0)
    assert entrypoint._limits() == [["end-when-idle", "1800.0"], ["end-at-limit", "4600.0"]]
    monkeypatch.setenv(entrypoint.IDLE_VARIABLE, "soon")
    with pytest.raises(ValueError, match="soon"):
        entrypoint._limits()
