"""How nodes end by themselves: deleted where they may be, else switched off, and never left as they are."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from hvdcloud.node.run import finish
from hvdcloud.node.vms import poweroff
from hvdcloud.runs.reports import UploadReport
from hvdcloud.runs.state import RunState
from tests.standins.compute import Delays, Emulator
from tests.standins.metadata.guest_attributes import identity_of_vm
from tests.support.cloud import NODES_ACCOUNT
from tests.support.compute_clients import ZONE, Plain, until
from tests.support.gce_bench import DELETE
from tests.support.http_server import Asked, Reply, answering
from tests.support.nodes import RUN, NodeCluster, gone_afterwards

NAMES = ("vm-0", "vm-1", "vm-2")


class Nodes:
    """Three VMs, of which this one is vm-0; the others are reached over the stand-in for ssh, and are not ended.

    Args:
        cluster: their folders.
        emulator: the Compute API.
        monkeypatch: makes this process one of vm-0, which has nothing to end either.
    """

    def __init__(self, cluster: NodeCluster, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        self._base = cluster.base
        self.emulator = emulator
        self.signals: list[tuple[int, int]] = []
        """What was sent to processes of this node."""
        cluster.add_tool("hvdcloud-node", '#!/bin/sh\necho "$@" > "$HVDCLOUD_NODE_ROOT/told"\n')
        self.file = cluster.root("vm-0") / "var/lib/hvdcloud/node.json"
        for name, value in cluster.environment("vm-0").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.signals.append((pid, number)))

    def told(self) -> dict[str, str]:
        """The orders that the other nodes got."""
        return {file.parent.name: file.read_text().strip() for file in sorted(self._base.glob("*/told"))}

    def vms(self) -> set[str]:
        """Those that exist."""
        return {vm["name"] for vm in self.emulator.state.instances()}

    def is_a_vm(self, *, metadata: str) -> None:
        """Its metadata server is at this URL."""
        facts = {"name": "vm-0", "metadata": metadata, "compute_endpoint": self.emulator.url}
        self.file.write_text(json.dumps(facts))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    with (
        Emulator(delays=Delays(start=0.0, create=0.0, delete=0.0, other=0.0)) as emulator,
        answering(identity_of_vm(emulator, account=NODES_ACCOUNT, zone=ZONE)) as server,
        gone_afterwards(lambda folder: NodeCluster(folder, names=NAMES)) as cluster,
        monkeypatch.context() as patch,
    ):
        with Plain(emulator) as plain:
            plain.up(*NAMES)
        nodes = Nodes(cluster, emulator, patch)
        nodes.is_a_vm(metadata=server)
        yield nodes


def test_nodes_that_may_be_deleted_are_deleted_and_told_nothing(nodes: Nodes) -> None:
    nodes.emulator.access.allow(NODES_ACCOUNT, DELETE)
    assert poweroff.end_others(["vm-1", "vm-2"]) is None
    until(lambda: nodes.vms() == {"vm-0"})
    assert nodes.told() == {}


def test_the_head_deletes_a_peer_that_is_off_after_the_run_that_lost_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[poweroff.Refusal | None] = []
    monkeypatch.setattr(finish, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(poweroff, "wait_for_the_end", ends.append)
    nodes.emulator.access.allow(NODES_ACCOUNT, DELETE)
    nodes.emulator.kill(ZONE, "vm-1")
    until(lambda: "TERMINATED" in {vm["status"] for vm in nodes.emulator.state.instances()})
    ended = RunState(
        run=RUN, state="done", result="failed", nodes=NAMES, nodes_lost=["vm-1"], down_when_done=True,
        checkpoints=UploadReport(complete=True),
    )  # fmt: skip
    finish.after(ended)
    until(lambda: nodes.vms() == set() and nodes.emulator.state.all_disks() == [])
    assert ends == [None]
    assert nodes.told() == {}


def test_those_whose_deletion_is_refused_are_switched_off_and_named(nodes: Nodes) -> None:
    nodes.emulator.access.allow(NODES_ACCOUNT, DELETE, resource="*/instances/vm-2")
    refusal = poweroff.end_others(["vm-1", "vm-2"])
    assert nodes.told() == {"vm-1": "poweroff"}
    assert refusal is not None
    assert refusal.nodes == ("vm-1",)
    assert f"Required '{DELETE}' permission" in refusal.reason
    assert "vm-1 could not be deleted from within" in refusal.consequence


def test_whatever_is_broken_on_the_way_to_the_api_the_nodes_are_switched_off(nodes: Nodes) -> None:
    def garbled(asked: Asked) -> Reply:
        return Reply({"no": "token"} if asked.path.endswith("/token") else b"zones/z")

    with answering(garbled) as server:
        nodes.is_a_vm(metadata=server)
        refusal = poweroff.end_others(["vm-1", "vm-2"])
        own = poweroff.delete_this_one()
    assert nodes.told() == {"vm-1": "poweroff", "vm-2": "poweroff"}
    assert refusal == (("vm-1", "vm-2"), "KeyError: 'access_token'")
    assert own == (("vm-0",), "KeyError: 'access_token'")


def test_nodes_that_are_no_vms_are_switched_off_without_a_word_of_refusal(nodes: Nodes) -> None:
    nodes.is_a_vm(metadata="")
    assert poweroff.end_others(["vm-1", "vm-2"]) is None
    assert nodes.told() == {"vm-1": "poweroff", "vm-2": "poweroff"}
    assert poweroff.delete_this_one() is None
    assert [entry for entry in nodes.emulator.log.entries() if entry.method == DELETE] == []


def test_a_node_that_may_not_delete_itself_switches_itself_off_without_waiting_for_a_deletion(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = poweroff.delete_this_one()
    assert refusal is not None
    assert refusal.nodes == ("vm-0",)
    poweroff.wait_for_the_end(refusal, seconds=0.0)
    assert nodes.signals == [(1, signal.SIGTERM)]
    assert "still here" not in capsys.readouterr().err


def test_a_node_that_is_not_deleted_in_time_though_that_was_granted_switches_itself_off(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    poweroff.wait_for_the_end(None, seconds=0.0)
    assert nodes.signals == [(1, signal.SIGTERM)]
    assert "still here 0 s after the deletion was granted; switching off" in capsys.readouterr().err
    # Nobody deletes a container.
    nodes.is_a_vm(metadata="")
    poweroff.wait_for_the_end(None, seconds=0.0)
    assert len(nodes.signals) == 2
    assert capsys.readouterr().err == ""
