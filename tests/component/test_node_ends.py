"""How nodes end without the laptop: the head asks the others over SSH, and then ends itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hvdcloud.node.run import finish
from hvdcloud.runs.reports import UploadReport
from hvdcloud.runs.state import RunState
from tests.support.nodes import RUN, NodeCluster, gone_afterwards

NAMES = ("vm-0", "vm-1", "vm-2")


class Nodes:
    """Three nodes, of which this one is vm-0; the others are reached over the stand-in for ssh, and are not ended."""

    def __init__(self, cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = cluster.base
        self.signals: list[tuple[int, int]] = []
        """What was sent to processes of this node."""
        cluster.add_tool("hvdcloud-node", '#!/bin/sh\necho "$@" > "$HVDCLOUD_NODE_ROOT/told"\n')
        for name, value in cluster.environment("vm-0").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.signals.append((pid, number)))

    def told(self) -> dict[str, str]:
        """The orders that the other nodes got."""
        return {file.parent.name: file.read_text().strip() for file in sorted(self.base.glob("*/told"))}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(finish, "GRACE_SECONDS", 0.0)
    with gone_afterwards(lambda folder: NodeCluster(folder, names=NAMES)) as cluster, monkeypatch.context() as patch:
        yield Nodes(cluster, patch)


def ended(*, down_when_done: bool = False, complete: bool = True) -> RunState:
    """A run that is over."""
    return RunState(
        run=RUN,
        state="done",
        result="succeeded",
        nodes=NAMES,
        checkpoints=UploadReport(complete=complete),
        down_when_done=down_when_done,
    )


def test_the_head_ends_the_others_and_itself_after_the_run(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended(down_when_done=True)
    assert finish.announcements(run) == [
        "switching off the nodes: the run has ended and its checkpoints are in the bucket"
    ]
    finish.after(run)
    assert nodes.told() == {"vm-1": "poweroff", "vm-2": "poweroff"}
    assert nodes.signals == [(1, signal.SIGTERM)]
    assert f"hvdcloud: switching off: run {RUN} has ended" in capsys.readouterr().err


def test_a_node_that_does_not_answer_keeps_no_other(nodes: Nodes) -> None:
    (nodes.base / "unreachable-vm-1").touch()
    finish.after(ended(down_when_done=True))
    assert nodes.told() == {"vm-2": "poweroff"}
    assert nodes.signals == [(1, signal.SIGTERM)]


@pytest.mark.parametrize("run", [ended(), ended(down_when_done=True, complete=False)], ids=["not asked", "incomplete"])
def test_nodes_stay_that_were_not_to_end_or_hold_checkpoints(nodes: Nodes, run: RunState) -> None:
    finish.after(run)
    assert nodes.told() == {}
    assert nodes.signals == []
