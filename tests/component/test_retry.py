"""Between two attempts of a run: the old nodes are deleted once the bucket has all that they hold, and not before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.config.model import Config
from hvdcloud.errors import CheckpointError, NodeError, TeardownError
from hvdcloud.lifecycle import save, silent_hosts
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.down import down
from hvdcloud.lifecycle.retry import Retries
from hvdcloud.lifecycle.save import save_checkpoints
from hvdcloud.runs.retry import BEGUN, Attempt, Pending, pending
from tests.support.vanishing import RUN, Laptop, Machines, NewVm, Program, Vm, says

NOTHING_LEFT = says('{"runs": {}}\n')


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes get little time to finish."""
    monkeypatch.setattr(save, "ENDING_SECONDS", 1.0)
    monkeypatch.setattr(save, "PAUSE_SECONDS", 0.05)


def two(laptop: Laptop, new_vm: NewVm, *programs: Program) -> tuple[Context, Cluster, Machines, list[Vm]]:
    vms = [new_vm({"hvdcloud-node flush": program}) for program in programs]
    context, cluster, machines = laptop.context(vms)
    return context, cluster, machines, vms


def with_state(machines: Machines, index: int, state: NodeState) -> Cluster:
    """The cluster after one of its nodes has changed, as its provider says from now on."""
    assert machines.cluster_now is not None
    nodes = [replace(node, state=state) if node.index == index else node for node in machines.cluster_now.nodes]
    machines.cluster_now = replace(machines.cluster_now, nodes=tuple(nodes))
    return machines.cluster_now


def test_nodes_that_have_uploaded_everything_may_be_deleted(laptop: Laptop, new_vm: NewVm) -> None:
    context, cluster, _, vms = two(laptop, new_vm, NOTHING_LEFT, NOTHING_LEFT)
    for node in (0, 1):
        laptop.keep_manifest(node, complete=True)
    assert save_checkpoints(context, cluster, run=RUN) == cluster
    assert all(vm.asked.is_set() for vm in vms)


def test_a_node_that_still_ends_its_ranks_is_waited_for(laptop: Laptop, new_vm: NewVm) -> None:
    flushes = []

    def flush(channel: Any) -> None:
        # Its agent has not ended the run when it is asked first: what ranks write after that would be lost.
        flushes.append(time.monotonic())
        if len(flushes) == 2:
            laptop.keep_manifest(1, complete=True)
        NOTHING_LEFT(channel)

    context, cluster, _, _ = two(laptop, new_vm, NOTHING_LEFT, flush)
    laptop.keep_manifest(0, complete=True)
    laptop.keep_manifest(1, complete=False)
    assert save_checkpoints(context, cluster, run=RUN) == cluster
    assert len(flushes) == 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (f'{{"runs": {{"{RUN}": {{"pending": ["a.pt"], "errors": []}}}}}}\n', "a.pt is not in the bucket yet"),
        (f'{{"runs": {{"{RUN}": {{"pending": [], "errors": ["no rights"]}}}}}}\n', "no rights"),
        ('{"runs": {}}\n', "node 1 has not finished uploading"),
    ],
)
def test_a_node_that_does_not_finish_stays(laptop: Laptop, new_vm: NewVm, said: str, why: str) -> None:
    context, cluster, machines, _ = two(laptop, new_vm, NOTHING_LEFT, says(said))
    laptop.keep_manifest(0, complete=True)
    laptop.keep_manifest(1, complete=False)
    with pytest.raises(CheckpointError) as caught:
        save_checkpoints(context, cluster, run=RUN)
    assert caught.value.message.startswith(f"run {RUN} is not tried again: digits is not deleted: ")
    assert why in f"{caught.value.message}\n{caught.value.details}"
    assert not machines.destroyed


def test_a_frozen_node_that_may_hold_more_stays_and_is_not_waited_for(
    laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "ENDING_SECONDS", 600.0)
    context, _, machines, _ = two(laptop, new_vm, NOTHING_LEFT, NOTHING_LEFT)
    laptop.keep_manifest(0, complete=True)
    laptop.keep_manifest(1, complete=False)
    with pytest.raises(CheckpointError, match="node digits-1 is frozen and may hold more"):
        save_checkpoints(context, with_state(machines, 1, NodeState.FROZEN), run=RUN)


class Restarting(Machines):
    """A provider that starts stopped nodes again."""

    def __init__(self, cluster: Cluster, laptop: Laptop) -> None:
        super().__init__(cluster)
        self.laptop = laptop

    def revive(self, nodes: Sequence[Node], *, deadline: float) -> Sequence[Node]:
        for node in nodes:
            self.revived.append(node.name)
            with_state(self, node.index, NodeState.RUNNING)
        return nodes


def test_a_stopped_node_is_started_again_to_upload_what_only_it_has(laptop: Laptop, new_vm: NewVm) -> None:
    def flush(channel: Any) -> None:
        laptop.keep_manifest(1, complete=True)
        NOTHING_LEFT(channel)

    context, cluster, _, vms = two(laptop, new_vm, NOTHING_LEFT, flush)
    laptop.keep_manifest(0, complete=True)
    machines = context.__dict__["provider"] = Restarting(cluster, laptop)
    stopped = with_state(machines, 1, NodeState.STOPPED)
    assert save_checkpoints(context, stopped, run=RUN) == cluster
    assert machines.revived == ["digits-1"]
    assert vms[1].asked.is_set()


def test_a_node_that_is_seen_to_have_stopped_only_later_is_started_again_too(laptop: Laptop, new_vm: NewVm) -> None:
    asked = []

    def flush(channel: Any) -> None:
        asked.append(time.monotonic())
        if len(asked) == 1:
            channel.send_exit_status(1)
            channel.close()
            return
        laptop.keep_manifest(1, complete=True)
        NOTHING_LEFT(channel)

    context, cluster, _, _ = two(laptop, new_vm, NOTHING_LEFT, flush)
    laptop.keep_manifest(0, complete=True)
    machines = context.__dict__["provider"] = Restarting(cluster, laptop)
    with_state(machines, 1, NodeState.STOPPED)
    # As it was when the run had just ended.
    assert save_checkpoints(context, cluster, run=RUN) == cluster
    assert machines.revived == ["digits-1"]


def test_a_stopped_node_that_holds_nothing_more_is_not_started_again(laptop: Laptop, new_vm: NewVm) -> None:
    context, cluster, _, _ = two(laptop, new_vm, NOTHING_LEFT, NOTHING_LEFT)
    for node in (0, 1):
        laptop.keep_manifest(node, complete=True)
    machines = context.__dict__["provider"] = Restarting(cluster, laptop)
    stopped = with_state(machines, 1, NodeState.STOPPED)
    assert save_checkpoints(context, stopped, run=RUN) == stopped
    assert machines.revived == []


def test_a_stopped_node_that_cannot_be_started_again_stays(laptop: Laptop, new_vm: NewVm) -> None:
    class Off(Restarting):
        def revive(self, nodes: Sequence[Node], *, deadline: float) -> Sequence[Node]:
            """As of a VM."""
            return []

    context, cluster, _, _ = two(laptop, new_vm, NOTHING_LEFT, NOTHING_LEFT)
    laptop.keep_manifest(0, complete=True)
    machines = context.__dict__["provider"] = Off(cluster, laptop)
    with pytest.raises(CheckpointError, match="node digits-1 is stopped and may hold more"):
        save_checkpoints(context, with_state(machines, 1, NodeState.STOPPED), run=RUN)


def test_what_a_node_held_that_is_gone_is_not_waited_for(laptop: Laptop, new_vm: NewVm) -> None:
    context, _, machines, _ = two(laptop, new_vm, NOTHING_LEFT, NOTHING_LEFT)
    laptop.keep_manifest(0, complete=True)
    laptop.keep_manifest(1, complete=False)
    assert machines.cluster_now is not None
    left = replace(machines.cluster_now, nodes=machines.cluster_now.nodes[:1])
    machines.cluster_now = left
    assert save_checkpoints(context, left, run=RUN) == left


# --- a host boots again ----------------------------------------------------------------------------------------------


class Booting(Machines):
    """Two hosts of a user's; each answer is the next of the list, and the last one stays."""

    def __init__(self, *answers: Cluster | NodeError) -> None:
        super().__init__(None)
        self.answers = [*answers]

    def cluster(self, name: str) -> Cluster | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, NodeError):
            raise answer
        return answer


@pytest.fixture
def lost(laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, Cluster, Cluster]:
    """A run that is tried again; its cluster, and what is seen of it while the second host boots."""
    monkeypatch.setattr(silent_hosts, "PAUSE_SECONDS", 0.05)
    context, cluster, _, _ = two(laptop, new_vm, NOTHING_LEFT, NOTHING_LEFT)
    context.config = Config.model_validate({"name": "digits", "run": {"retry": 2}})
    waiting = Pending(attempts=(Attempt(run=RUN, cluster_id=cluster.id, result="lost"),), ends=time.time() + 3600)
    context.state.journal.record(BEGUN, cluster_id=cluster.id, **waiting.to_json())
    return context, cluster, replace(cluster, nodes=cluster.nodes[:1], unseen=("host gpu2",))


def test_a_host_that_boots_is_waited_for(lost: tuple[Context, Cluster, Cluster], laptop: Laptop) -> None:
    context, cluster, partial = lost
    refused = NodeError("gpu1 cannot be reached", hint="-")
    machines = context.__dict__["provider"] = Booting(partial, refused, partial, cluster)
    silent_hosts.wait_for_hosts(context, {cluster.id}, seconds=600)
    assert machines.answers == [cluster]
    assert "host gpu2 does not answer and may have a node of digits; waiting for its return" in laptop.err.getvalue()


def test_a_host_that_stays_away_keeps_the_lost_cluster_and_the_next_attempt(
    lost: tuple[Context, Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_hosts, "RETURN_SECONDS", 0.2)
    context, _, partial = lost
    machines = context.__dict__["provider"] = Booting(partial)
    with pytest.raises(TeardownError, match="host gpu2 does not answer and may have a node of digits") as caught:
        Retries(context, command="run").up()
    assert "hvdcloud run --name digits continues when it is back" in caught.value.hint
    assert not machines.destroyed
    assert pending(context.state.journal.entries(), now=time.time()) is not None


def test_a_host_that_is_lost_again_after_it_answered_keeps_the_lost_cluster(
    lost: tuple[Context, Cluster, Cluster],
) -> None:
    context, cluster, partial = lost
    machines = context.__dict__["provider"] = Booting(cluster, partial)
    with pytest.raises(TeardownError, match="nothing was deleted"):
        Retries(context, command="run").up()
    assert not machines.destroyed


def test_a_host_without_a_node_is_not_waited_for_nor_one_where_nodes_cost_money(
    lost: tuple[Context, Cluster, Cluster],
) -> None:
    context, cluster, partial = lost
    context.__dict__["provider"] = Booting(replace(cluster, unseen=("host spare",)))
    silent_hosts.wait_for_hosts(context, {cluster.id}, seconds=0)
    context.config = Config.model_validate({"name": "digits", "provider": "gce"})
    context.__dict__.pop("platform")
    context.__dict__["provider"] = Booting(partial)
    silent_hosts.wait_for_hosts(context, {cluster.id}, seconds=0)


def test_down_gives_up_what_a_killed_client_would_have_tried_again(laptop: Laptop) -> None:
    context, _, machines = laptop.context([])
    machines.cluster_now = None
    lost = Attempt(run=RUN, cluster_id="abcdef", result="lost", cause="lost")
    waiting = Pending(attempts=(lost,), ends=time.time() + 3600)
    journal = context.state.journal
    journal.record(BEGUN, cluster_id="abcdef", **waiting.to_json())
    assert pending(journal.entries(), now=time.time()) == waiting
    down(context)
    assert pending(journal.entries(), now=time.time()) is None
