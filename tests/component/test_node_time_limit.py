"""`limits.max_run_duration` where nodes end themselves: when, and what a node decides."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hvdcloud.node.boot import time_limit
from hvdcloud.node.boot.time_limit import LATE_SECONDS
from hvdcloud.node.files import Lock, write_json
from hvdcloud.node.mesh import poweroff
from hvdcloud.node.mesh.nodes import Peer, remember
from hvdcloud.node.paths import agent_lock, node_file
from tests.support.nodes import RUN


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was ended: this test's process has no container."""
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    monkeypatch.setenv(time_limit.VARIABLE, "7200")
    found: list[str] = []
    monkeypatch.setattr(poweroff, "end_others", found.extend)
    monkeypatch.setattr(poweroff, "switch_off", lambda: found.append("itself"))
    return found


def be(name: str) -> None:
    write_json(node_file(), {"name": name})
    remember([Peer(each, "127.0.0.1", 22, "") for each in ("n0", "n1", "n2")])


@pytest.mark.parametrize(("name", "ends"), [("n0", ["n1", "n2", "itself"]), ("n1", ["itself"])])
def test_the_head_ends_the_others_and_each_node_itself(
    ended: list[str], capsys: pytest.CaptureFixture[str], name: str, ends: list[str]
) -> None:
    be(name)
    assert time_limit.end_at_limit() == 0
    assert ended == ends
    assert "hvdcloud: limits.max_run_duration of 2.0 h is over; switching off" in capsys.readouterr().err


def test_a_node_ends_when_the_limit_is_over_and_not_before(ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    be("n1")
    clock = [1000.0]

    def pause(seconds: float) -> None:
        assert ended == []
        clock[0] += seconds

    monkeypatch.setattr(time_limit, "now", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", pause)
    time_limit.end_at_limit(1060.0)
    assert (ended, clock[0]) == (["itself"], 1060.0)


def test_a_node_waits_until_its_head_has_ended_the_run_but_not_for_ever(
    ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]

    def pause(seconds: float) -> None:
        assert ended == []
        clock[0] += seconds
        if clock[0] - 1000.0 == 5.0:
            agent.release()

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", pause)
    agent = Lock(agent_lock(RUN))
    assert agent.acquire({"pid": os.getpid()})
    time_limit.end_at_limit()
    assert (ended, clock[0]) == (["itself"], 1005.0)
    ended.clear()
    assert agent.acquire({"pid": os.getpid()})
    time_limit.end_at_limit()
    assert (ended, clock[0]) == (["itself"], 1005.0 + LATE_SECONDS)
