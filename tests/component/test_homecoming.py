"""Nodes that have a bucket each: when checkpoints are copied to the laptop, and what `down` refuses until then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import list_runs
from hvdcloud.cluster.model import ClusterObject, NodeState, ObjectKind
from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.lifecycle.down import down
from hvdcloud.lifecycle.pull import pull
from hvdcloud.lifecycle.ssh_nodes import homecoming
from hvdcloud.lifecycle.ssh_nodes.homecoming import mirroring, send_for_resume
from hvdcloud.remote.mirror import Mirror
from hvdcloud.storage.folder import FolderBucket
from tests.support.harness import until
from tests.support.node_buckets import BucketNode
from tests.support.vanishing import RUN, Laptop


class Scene:
    """A cluster of two nodes with a bucket each, and the laptop that made it."""

    def __init__(self, laptop: Laptop, nodes: list[BucketNode]) -> None:
        self.laptop, self.nodes = laptop, nodes
        self.context, self.cluster, self.machines = laptop.context([node.vm for node in nodes])
        self.machines.per_node = True
        self.target = laptop.folder / "pulled"

    @property
    def printed(self) -> str:
        return self.laptop.err.getvalue()

    @property
    def bucket(self) -> FolderBucket:
        return FolderBucket(self.laptop.folder / "bucket")

    def stop(self, index: int, *, revivable: bool = True) -> None:
        """The node's container has ended."""
        assert self.machines.cluster_now is not None
        nodes = list(self.machines.cluster_now.nodes)
        if revivable:
            self.machines.revivable[nodes[index].name] = nodes[index]
        nodes[index] = replace(nodes[index], state=NodeState.STOPPED, address=None)
        self.machines.cluster_now = replace(self.cluster, nodes=tuple(nodes))

    def train(self) -> None:
        """Each node has a checkpoint of its own."""
        self.nodes[0].write({"epoch-1.pt": b"one"})
        self.nodes[1].write({"extra": b"two"})

    def refusal(self, **options: Any) -> CheckpointError:
        """Why `down` deletes nothing."""
        with pytest.raises(CheckpointError) as raised:
            down(self.context, **options)
        assert not self.machines.destroyed
        return raised.value

    def pull(self) -> dict[str, bytes]:
        pull(self.context, run_id=None, target=self.target)
        files = (path for path in (self.target / RUN).rglob("*") if path.is_file())
        return {str(path.relative_to(self.target / RUN)): path.read_bytes() for path in files}


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("hvdcloud.lifecycle.down.SWITCH_OFF_SECONDS", 0.0)
    monkeypatch.setattr("hvdcloud.remote.connection.MOST_SECONDS", 6.0)
    (tmp_path / "laptop").mkdir()
    return Laptop(tmp_path / "laptop")


@pytest.fixture
def scene(laptop: Laptop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(homecoming, "PASS_SECONDS", 0.2)
    nodes = [BucketNode(tmp_path / f"node-{index}", index) for index in range(2)]
    scene = Scene(laptop, nodes)
    with scene.context:
        yield scene
    for node in nodes:
        node.vm.close()


def test_pull_fetches_from_the_nodes_first(scene: Scene) -> None:
    scene.train()
    assert scene.pull() == {"epoch-1.pt": b"one", "@node-1/extra": b"two"}


def test_pull_brings_what_it_can_where_a_node_does_not_answer_and_names_it(scene: Scene) -> None:
    scene.train()
    scene.nodes[1].vm.close()
    assert scene.pull() == {"epoch-1.pt": b"one"}
    assert "not every checkpoint is on this machine: node digits-1 does not answer" in scene.printed


def test_down_refuses_until_what_is_on_the_nodes_has_been_pulled(scene: Scene) -> None:
    scene.train()
    assert "2 files not verified on this disk" in str(scene.refusal(checked=[RUN]))
    scene.pull()
    down(scene.context)
    assert scene.machines.destroyed


def test_down_refuses_while_a_node_does_not_answer_also_if_its_run_is_said_to_be_complete(scene: Scene) -> None:
    scene.train()
    scene.nodes[1].vm.close()
    scene.pull()
    refused = scene.refusal(checked=[RUN])
    assert "node digits-1 does not answer" in str(refused)
    assert "--force" in refused.hint
    down(scene.context, force=True)
    assert scene.machines.destroyed


def test_down_refuses_while_a_checkpoint_of_a_node_does_not_verify(scene: Scene) -> None:
    scene.nodes[0].write({"epoch-1.pt": b"one"})
    path = next(scene.nodes[0].bucket.root.rglob("epoch-1.pt"))
    status = path.stat()
    path.write_bytes(b"xxx")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "does not verify" in str(scene.refusal())


def test_down_from_a_machine_that_cannot_reach_the_nodes_refuses(scene: Scene) -> None:
    scene.nodes[0].write({"epoch-1.pt": b"one"})
    scene.context.state.forget()
    assert "on its nodes, which only the machine of me can reach" in str(scene.refusal())


def test_a_node_that_has_ended_is_started_again_for_what_only_it_has_and_ends_again(scene: Scene) -> None:
    scene.train()
    scene.stop(0)
    scene.stop(1)
    assert scene.pull() == {"epoch-1.pt": b"one", "@node-1/extra": b"two"}
    assert sorted(scene.machines.revived) == ["digits-0", "digits-1"]
    assert [node.verbs.count("poweroff") for node in scene.nodes] == [1, 1]
    # What is here needs no node.
    scene.machines.revived.clear()
    down(scene.context)
    assert scene.machines.revived == []
    assert scene.machines.destroyed


def test_a_node_that_cannot_be_started_again_keeps_down_from_deleting_it(scene: Scene) -> None:
    scene.train()
    scene.stop(1, revivable=False)
    scene.pull()
    assert "node digits-1 is stopped" in str(scene.refusal())


def test_checkpoints_come_while_a_run_is_followed_and_the_rest_at_its_end(scene: Scene) -> None:
    with mirroring(scene.context, scene.cluster):
        scene.nodes[0].write({"epoch-1.pt": b"one"}, complete=False)
        until(lambda: list_runs(scene.bucket, "digits"), what="the first checkpoint on the laptop")
        scene.nodes[1].write({"extra": b"two"})
        scene.nodes[0].write({"epoch-2.pt": b"two"})
    for node in scene.nodes:
        node.vm.close()
    scene.machines.cluster_now = replace(scene.cluster, nodes=())
    assert scene.pull() == {"epoch-1.pt": b"one", "epoch-2.pt": b"two", "@node-1/extra": b"two"}


def test_ctrl_c_while_the_rest_comes_keeps_how_the_run_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(homecoming, "_bring", interrupted)
    with mirroring(scene.context, scene.cluster):
        pass
    assert "interrupted; hvdcloud pull --name digits fetches the rest" in scene.printed


def test_two_commands_that_fetch_at_once_take_turns(scene: Scene) -> None:
    scene.nodes[0].write({"epoch-1.pt": b"one"})
    other = Mirror(scene.bucket, cluster="digits", cluster_id="abcdef")
    waited: list[bool] = []

    def give_up() -> None:
        waited.append(True)
        raise NodeError("it is still fetching", hint="")

    with other.alone() as alone:
        assert alone
        with pytest.raises(NodeError), Mirror(scene.bucket, cluster="digits", cluster_id="abcdef").alone(wait=give_up):
            pass
        with Mirror(scene.bucket, cluster="digits", cluster_id="abcdef").alone() as second:
            assert not second
    assert waited
    assert scene.pull() == {"epoch-1.pt": b"one"}


def test_nodes_get_the_checkpoints_of_the_run_that_is_continued(scene: Scene) -> None:
    scene.nodes[0].write({"epoch-1.pt": b"one"})
    scene.pull()
    send_for_resume(scene.context, scene.cluster, RUN)
    assert [next(node.bucket.root.rglob("epoch-1.pt")).read_bytes() for node in scene.nodes] == [b"one", b"one"]


def test_down_refuses_while_a_volume_without_its_container_may_hold_more(scene: Scene) -> None:
    scene.train()
    scene.nodes[1].vm.close()
    volume = ClusterObject(ObjectKind.VOLUME, "digits-1-abcdef")
    rest = replace(scene.cluster, nodes=scene.cluster.nodes[:1], other_objects=(volume,))
    scene.machines.cluster_now = rest
    scene.pull()
    assert "container of node digits-1 is gone, and its volume may hold more" in str(scene.refusal())
    # Without any container it is no other.
    scene.machines.cluster_now = replace(rest, nodes=())
    assert "its volume may hold more" in str(scene.refusal())


def test_down_refuses_while_two_hosts_have_the_same_node(scene: Scene) -> None:
    scene.train()
    scene.pull()
    # A host that was taken out of the file, and named again after another one had its node.
    twin = replace(scene.cluster.nodes[1], id="twin", state=NodeState.STOPPED, host="gpu3")
    scene.machines.cluster_now = replace(scene.cluster, nodes=(*scene.cluster.nodes, twin))
    refused = scene.refusal()
    assert "node digits-1 on gpu3 is on another host too" in refused.details
    assert "--force" in refused.hint


def test_volumes_whose_checkpoints_are_here_are_deleted_without_their_containers(scene: Scene) -> None:
    scene.train()
    scene.pull()
    volumes = tuple(ClusterObject(ObjectKind.VOLUME, f"digits-{index}-abcdef") for index in range(2))
    scene.machines.cluster_now = replace(scene.cluster, nodes=(), other_objects=volumes)
    down(scene.context)
    assert scene.machines.destroyed
