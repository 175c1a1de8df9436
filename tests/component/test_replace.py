"""Nodes of an elastic run that are lost are replaced while a client follows it; and when a resize is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import paramiko
import pytest

from hvdcloud.cluster.model import Cluster, ClusterSpec, Leftover, Node, NodeState, Plan
from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.cluster.state import as_known_here
from hvdcloud.errors import CapacityError, CheckpointError, HvdcloudError, NameTakenError, NodeError, UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.elastic import replace as replacement
from hvdcloud.lifecycle.elastic.replace import Replacer
from hvdcloud.lifecycle.resize import resize
from hvdcloud.node import program
from hvdcloud.providers.base import NodeBucket
from hvdcloud.remote import connection
from hvdcloud.remote.keys import new_key_pair, pinned, read_key_pair, write_key_pair
from tests.support.harness import until
from tests.support.vanishing import RUN, Laptop, NewVm, Program, Vm, says

JOINED = {"version": program.version(), "gpus": 0, "interface": "eth0"}


@dataclass
class Cloud:
    """A provider whose nodes are in-process sshds."""

    new_vm: Callable[[], Vm]
    created: datetime
    bucket: str
    there: dict[int, Node] = field(default_factory=dict)
    size: int = 3
    errors: list[HvdcloudError] = field(default_factory=list)
    """Instead of making nodes, one after the other."""
    started_again: set[int] = field(default_factory=set)
    """By the user, just before they are made again."""
    said: list[str] = field(default_factory=list)
    slow: bool = False
    """New nodes do not get ready before they are deleted."""
    booting: threading.Event = field(default_factory=threading.Event)
    stuck: bool = False
    """Nothing can be deleted."""
    unseen: tuple[str, ...] = ()
    """Hosts that do not answer."""
    hidden: list[int] = field(default_factory=list)
    """Nodes that are missing in one answer each."""

    name = "gce"
    ready_seconds = 30.0

    def cluster(self, name: str) -> Cluster:
        hidden = self.hidden.pop() if self.hidden else None
        return Cluster(
            name="digits",
            id="abcdef",
            owner="me",
            provider="gce",
            created=self.created,
            expected_nodes=self.size,
            nodes=tuple(self.there[index] for index in sorted(self.there) if index != hidden),
            image="image",
            bucket=self.bucket,
            unseen=self.unseen,
        )

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        return Plan(spec=spec, requests=(), dollars_per_hour=0.0)

    def grow(self, spec: ClusterSpec, indices: Sequence[int], **_: Any) -> list[Node]:
        self.said.append(f"grow {[*indices]} of {spec.nodes}")
        if self.errors:
            raise self.errors.pop(0)
        if again := self.started_again & {*indices}:
            self.there |= {index: replace(self.there[index], state=NodeState.RUNNING) for index in again}
            raise NameTakenError(f"node digits-{min(again)} is there", hint="-")
        for index in indices:
            self.there[index] = replace(self.new_vm().node(index), id=f"new-{index}")
        return [self.there[index] for index in indices]

    def wait_ready(self, nodes: Sequence[Node], **_: Any) -> list[Node]:
        self.booting.set()
        if self.slow:
            until(lambda: nodes[0].index not in self.there, what="the node's deletion")
            raise NodeError(f"node {nodes[0].name} stopped while coming up", hint="-")
        return [*nodes]

    def shrink(self, name: str, indices: Sequence[int], **_: Any) -> list[Leftover]:
        self.said.append(f"shrink {[*indices]}")
        if self.stuck:
            return [Leftover(object="VM z/digits-2", reason="403", delete_with="gcloud delete")]
        for index in indices:
            self.there.pop(index, None)
        return []

    def close(self) -> None:
        pass

    def bucket_as_seen_by_nodes(self, bucket: str) -> NodeBucket:
        return NodeBucket(bucket=bucket)

    def set_size(self, name: str, nodes: int) -> None:
        self.size = nodes


@dataclass
class Scene:
    """An elastic run that continues with three nodes, as far as the head reports."""

    context: Context
    cloud: Cloud
    laptop: Laptop
    state: dict[str, Any]
    admitted: list[dict[str, Any]]
    dismissed: list[dict[str, Any]]
    flushed: dict[str, Any]
    """What every node reports of each run after the order to upload what it holds."""

    @property
    def printed(self) -> str:
        return self.laptop.err.getvalue()


@pytest.fixture
def scene(laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Everything here answers; a busy machine takes its time.
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 30.0)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 30.0)
    state: dict[str, Any] = {
        "run": RUN,
        "state": "running",
        "elastic": {"min": 1, "max": 4},
        "members": [{"name": "digits-2", "state": "lost", "why": "preempted"}],
    }
    admitted: list[dict[str, Any]] = []
    dismissed: list[dict[str, Any]] = []
    flushed: dict[str, Any] = {}

    def answers(text: Callable[[], str], heard: list[dict[str, Any]] | None = None) -> Program:
        def run(channel: paramiko.Channel) -> None:
            # To its end: a server that answers and closes the connection before that cuts the laptop short.
            asked = channel.makefile("r").read()
            if heard is not None:
                heard.append(json.loads(asked))
            says(text())(channel)

        return run

    programs: dict[str, Program] = {
        "hvdcloud-node join": answers(lambda: json.dumps(JOINED)),
        "hvdcloud-node state": answers(lambda: json.dumps({"runs": [state]})),
        "hvdcloud-node flush": answers(lambda: json.dumps({"runs": flushed})),
        f"hvdcloud-node admit {RUN}": answers(lambda: '{"ok": true}', admitted),
        f"hvdcloud-node dismiss {RUN}": answers(lambda: '{"ok": true}', dismissed),
    }
    vms = [new_vm(programs) for _ in range(3)]
    context, cluster, _ = laptop.context(vms)
    there = dict(enumerate(cluster.nodes))
    cloud = Cloud(lambda: new_vm(programs), created=cluster.created, bucket=cluster.bucket, there=there)
    context.__dict__["provider"] = cloud
    write_key_pair(context.state.key_file, new_key_pair("laptop"))
    members = tuple(MemberRecord(name=node.name, interface="eth0") for node in cluster.nodes)
    context.state.update(lambda record: replace(record, size=3, nodes=members))
    yield Scene(context, cloud, laptop, state, admitted, dismissed, flushed)
    context.__exit__(None, None, None)


@pytest.fixture
def replacer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replacer]:
    for name in ("CHECK_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(replacement, name, 0.05)
    replacer = Replacer(scene.context, RUN)
    yield replacer
    replacer.close()


def record(scene: Scene) -> ClusterRecord:
    found = scene.context.state.load()
    assert found is not None
    return found


def member_names(scene: Scene) -> list[str]:
    return [node.name for node in record(scene).nodes]


def test_a_node_that_is_gone_comes_back_and_is_admitted(scene: Scene, replacer: Replacer) -> None:
    before = pinned(scene.context.state)
    scene.cloud.there.pop(2)
    until(lambda: scene.admitted, what="the new node's admission")
    assert scene.admitted == [{"hosts": [{"name": "digits-2", "index": 2, "slots": 1}]}]
    until(lambda: "is back" in scene.printed, what="a word about it")
    assert "node digits-2 is gone (the head says: preempted); replacing it" in scene.printed
    after = pinned(scene.context.state)
    assert after["digits-2"] != before["digits-2"]
    assert (after["digits-0"], after["digits-1"]) == (before["digits-0"], before["digits-1"])
    assert member_names(scene) == ["digits-0", "digits-1", "digits-2"]
    assert read_key_pair(scene.context.state.mesh_key_file) is not None


def test_a_node_that_has_stopped_is_replaced_and_a_frozen_one_is_left_alone(scene: Scene, replacer: Replacer) -> None:
    scene.cloud.there[1] = replace(scene.cloud.there[1], state=NodeState.FROZEN)
    scene.cloud.there[2] = replace(scene.cloud.there[2], state=NodeState.STOPPED)
    until(lambda: "node digits-2 is back" in scene.printed, what="digits-2")
    assert "digits-2 has stopped (the head says: preempted)" in scene.printed
    assert scene.cloud.said == ["grow [2] of 3"]
    assert scene.cloud.there[1].id == "1"


def test_a_node_on_a_host_that_does_not_answer_is_waited_for(scene: Scene, replacer: Replacer) -> None:
    scene.cloud.unseen = ("host gpu2",)
    node = scene.cloud.there.pop(2)
    replacer._ending.wait(0.5)
    assert scene.cloud.said == []
    # It boots again, and its container has ended.
    scene.cloud.there[2], scene.cloud.unseen = replace(node, state=NodeState.STOPPED), ()
    until(lambda: "node digits-2 is back" in scene.printed, what="digits-2")
    assert scene.cloud.said == ["grow [2] of 3"]


def test_a_node_that_is_missing_in_one_answer_is_not_replaced(scene: Scene, replacer: Replacer) -> None:
    scene.cloud.hidden = [2]
    until(lambda: replacer._lost, what="the answer without it")
    until(lambda: not replacer._lost, what="the next answer")
    assert scene.cloud.said == []


def test_neither_the_head_nor_a_node_beyond_the_runs_maximum_is_replaced(scene: Scene, replacer: Replacer) -> None:
    scene.state["elastic"] = {"min": 1, "max": 2}
    scene.cloud.there.pop(2)
    until(lambda: replacer._lost, what="a look")
    replacer._ending.wait(0.5)
    scene.cloud.there.pop(0)
    replacer._ending.wait(0.5)
    assert scene.cloud.said == []


def test_no_room_is_said_once_and_tried_again(scene: Scene, replacer: Replacer) -> None:
    scene.cloud.errors = [CapacityError("no room in us-central1-a", hint="-") for _ in range(3)]
    scene.cloud.there.pop(2)
    until(lambda: "node digits-2 is back" in scene.printed, what="digits-2")
    assert scene.cloud.said.count("grow [2] of 3") == 4
    assert scene.printed.count("no room in us-central1-a; trying again") == 1
    assert scene.printed.count("replacing it") == 1


def test_nothing_is_made_when_the_run_has_ended(scene: Scene, replacer: Replacer) -> None:
    scene.state["state"] = "done"
    scene.cloud.there.pop(2)
    replacer._thread.join(10)
    assert not replacer._thread.is_alive()
    assert scene.cloud.said == []


def test_nothing_is_made_while_another_command_changes_the_cluster(scene: Scene, replacer: Replacer) -> None:
    with scene.context.state.lock("resize"):
        scene.cloud.there.pop(2)
        until(lambda: replacer._lost, what="a look")
        replacer._ending.wait(0.5)
        assert scene.cloud.said == []
    until(lambda: "node digits-2 is back" in scene.printed, what="digits-2")


def test_what_is_half_made_when_the_client_detaches_is_deleted(scene: Scene, replacer: Replacer) -> None:
    scene.cloud.slow = True
    scene.cloud.there.pop(2)
    assert scene.cloud.booting.wait(10)
    until(lambda: replacer._booting.is_set(), what="the node to boot")
    replacer.close()
    assert 2 not in scene.cloud.there
    assert "deleting digits-2, which was not ready yet" in scene.printed
    assert "is back" not in scene.printed
    assert scene.admitted == []
    assert member_names(scene) == ["digits-0", "digits-1"]
    known = as_known_here(scene.cloud.cluster("digits"))
    assert (known.expected_nodes, known.whole) == (3, False)


def test_resize_grows_an_elastic_run(scene: Scene) -> None:
    result = resize(scene.context, 4)
    assert (result.made, result.removed, result.run) == (["digits-3"], [], RUN)
    assert scene.admitted == [{"hosts": [{"name": "digits-3", "index": 3, "slots": 1}]}]
    assert scene.cloud.size == 4
    assert scene.context.cluster().whole
    again = resize(scene.context, 4)
    assert (again.made, again.removed) == ([], [])


def test_resize_dismisses_the_last_nodes_before_it_deletes_them(scene: Scene) -> None:
    result = resize(scene.context, 1)
    assert result.removed == ["digits-1", "digits-2"]
    assert scene.dismissed == [{"nodes": ["digits-1", "digits-2"]}]
    assert scene.cloud.said == ["shrink [1, 2]"]
    assert member_names(scene) == ["digits-0"]
    assert [*pinned(scene.context.state)] == ["digits-0"]


def test_the_run_that_resize_shrinks_is_no_reason_to_refuse_but_its_files_are(scene: Scene) -> None:
    scene.flushed[RUN] = {"active": True, "pending": ["1.pt"]}
    with pytest.raises(CheckpointError) as refused:
        resize(scene.context, 2)
    assert refused.value.details == f"{RUN}: 1.pt is not in the bucket yet"
    scene.flushed[RUN] = {"active": True}
    scene.flushed["20261121-101112-other"] = {"active": True}
    with pytest.raises(CheckpointError, match="1 thing would be lost"):
        resize(scene.context, 2)
    assert scene.cloud.said == []
    del scene.flushed["20261121-101112-other"]
    assert resize(scene.context, 2).removed == ["digits-2"]


@pytest.mark.parametrize(
    ("takes", "nodes", "said"),
    [
        ({"min": 2, "max": 4}, 5, "takes 2 to 4 nodes, not 5"),
        ({"min": 2, "max": 4}, 1, "takes 2 to 4 nodes, not 1"),
        (None, 4, "is active and not elastic"),
        (None, 2, "is active and not elastic"),
    ],
)
def test_resize_keeps_to_what_the_run_takes(scene: Scene, takes: object, nodes: int, said: str) -> None:
    scene.state["elastic"] = takes
    with pytest.raises(UsageError, match=said):
        resize(scene.context, nodes)
    assert scene.cloud.said == []


def test_new_nodes_that_do_not_come_up_leave_the_cluster_as_it_was(scene: Scene) -> None:
    scene.cloud.errors = [CapacityError("no room", hint="-")]
    with pytest.raises(CapacityError):
        resize(scene.context, 4)
    assert scene.cloud.said == ["grow [3] of 4", "shrink [3]"]
    assert scene.context.cluster().whole
    assert scene.admitted == []


def test_a_stopped_node_that_may_hold_checkpoints_is_not_deleted(scene: Scene) -> None:
    scene.state["state"] = "done"
    scene.cloud.there[1] = replace(scene.cloud.there[1], state=NodeState.STOPPED)
    with pytest.raises(CheckpointError, match="digits-1 cannot be deleted"):
        resize(scene.context, 3)
    assert scene.cloud.said == []
    scene.laptop.keep_manifest(1, complete=True)
    assert resize(scene.context, 3).made == ["digits-1"]
    assert scene.admitted == []
