"""`run.retry`: between two attempts of a run the old nodes are deleted once everything that they hold is on this disk,
and not before; the next attempt gets what is left of the limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hvdcloud.cluster.cost import Meter
from hvdcloud.cluster.model import Cluster, Leftover, Node, NodeState
from hvdcloud.config.model import Config
from hvdcloud.errors import CheckpointError, InterruptedByUserError
from hvdcloud.lifecycle import retry
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.retry import Retries
from hvdcloud.lifecycle.run_result import RunResult
from hvdcloud.lifecycle.run_spec import RunOptions
from hvdcloud.runs.retry import Within
from tests.support.vanishing import RUN, Laptop, Machines, NewVm, Program, Vm, says

NOTHING_LEFT = says('{"runs": {}}\n')
NEXT = "20261121-111213-bbbbbb"


class Provider(Machines):
    """Two nodes that a test takes away; stopped ones are started again."""

    revives = True

    def destroy(self, name: str, **_: Any) -> Sequence[Leftover]:
        self.cluster_now = None
        return super().destroy(name)

    def change(self, index: int, state: NodeState) -> None:
        assert self.cluster_now is not None
        nodes = [replace(node, state=state) if node.index == index else node for node in self.cluster_now.nodes]
        self.cluster_now = replace(self.cluster_now, nodes=tuple(nodes))

    def revive(self, nodes: Sequence[Node], *, deadline: float) -> Sequence[Node]:
        self.revived += [node.name for node in nodes]
        for node in nodes if self.revives else ():
            self.change(node.index, NodeState.RUNNING)
        return [replace(node, state=NodeState.RUNNING) for node in nodes] if self.revives else []


@dataclass
class Scene:
    """A run that lost its nodes; what the next attempts of it are asked for."""

    context: Context
    machines: Provider
    laptop: Laptop
    vms: list[Vm]
    first: Cluster
    ends: list[RunResult | Callable[[], RunResult]]
    """Of each attempt."""
    within: list[Within] = field(default_factory=list)
    options: list[RunOptions] = field(default_factory=list)

    def run(self, context: Context, options: RunOptions, *, meter: Meter) -> RunResult:
        self.options.append(options)
        if self.machines.cluster_now is not None:
            meter.observe(self.machines.cluster_now)
        end = self.ends[len(self.options) - 1]
        return end() if callable(end) else end

    def up(self, context: Context, *, within: Within, **_: Any) -> None:
        self.within.append(within)
        self.machines.cluster_now = replace(self.first, id="bbbbbb")

    def retried(self, options: RunOptions | None = None) -> RunResult:
        return Retries(self.context, command="run", meter=Meter()).run(options or RunOptions())


def ended(state: str, run: str = RUN, **more: Any) -> RunResult:
    return RunResult(run=run, cluster="digits", state=state, ranks=2, seconds=1.0, **more)


LOST = ended("lost", reason="node digits-1 was lost", nodes_lost=["digits-1"])
DONE = ended("succeeded", NEXT, checkpoints_complete=True)

NewScene = Callable[..., Scene]


@pytest.fixture
def scene(laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> NewScene:
    def make(*programs: Program, ends: Sequence[Any] = (LOST, DONE), retries: int = 2, **limits: Any) -> Scene:
        usual = {"hvdcloud-node poweroff": says("{}\n"), "hvdcloud-node state": NOTHING_LEFT}
        vms = [new_vm({**usual, "hvdcloud-node flush": program}) for program in programs]
        context, cluster, _ = laptop.context(vms)
        config = {"name": "digits", "nodes": len(vms), "run": {"retry": retries}, "limits": limits}
        context.config = Config.model_validate(config)
        context.config._project_dir, context._bucket = tmp_path, f"file://{laptop.folder}/bucket"
        machines = context.__dict__["provider"] = Provider(replace(cluster, dollars_per_hour=0.9))
        found = Scene(context, machines, laptop, vms, cluster, [*ends])
        monkeypatch.setattr(retry, "run", found.run)
        monkeypatch.setattr(retry, "up", found.up)
        monkeypatch.setattr(retry, "PAUSE_SECONDS", 0.05)
        return found

    return make


def complete(laptop: Laptop, *nodes: int) -> None:
    for node in nodes:
        laptop.keep_manifest(node, complete=True)


def test_a_lost_run_continues_on_a_new_cluster_within_what_is_left(scene: NewScene, laptop: Laptop) -> None:
    found = scene(NOTHING_LEFT, NOTHING_LEFT, max_cost=2.0, max_run_duration="1h")
    complete(laptop, 0, 1)
    result = found.retried()
    assert [(each.run, each.lost) for each in result.attempts] == [(RUN, True), (NEXT, False)]
    assert found.machines.destroyed
    assert all(vm.asked.is_set() for vm in found.vms)
    assert [each.resume for each in found.options] == [None, RUN]
    (within,) = found.within
    spent = result.attempts[0].dollars
    assert spent is not None
    assert within.max_dollars == pytest.approx(2.0 - spent)
    assert abs(within.ends.timestamp() - time.time() - 3600) < 300
    assert f"attempt 2 of at most 3 continues run {RUN}; $2.00 and " in laptop.err.getvalue()


def test_a_node_that_still_ends_its_ranks_is_waited_for(scene: NewScene, laptop: Laptop) -> None:
    flushes = []

    def flush(channel: Any) -> None:
        # Its agent has not ended the run when it is asked first: what ranks write after that would be lost.
        flushes.append(time.monotonic())
        if len(flushes) == 2:
            laptop.keep_manifest(1, complete=True)
        NOTHING_LEFT(channel)

    found = scene(NOTHING_LEFT, flush)
    complete(laptop, 0)
    laptop.keep_manifest(1, complete=False)
    assert found.retried().state == "succeeded"
    assert len(flushes) == 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (f'{{"runs": {{"{RUN}": {{"pending": ["a.pt"], "errors": []}}}}}}\n', "a.pt is not in the bucket yet"),
        (f'{{"runs": {{"{RUN}": {{"pending": [], "errors": ["no rights"]}}}}}}\n', "no rights"),
        ('{"runs": {}}\n', "node 1 has not finished uploading"),
    ],
)
def test_a_node_that_does_not_finish_stays(
    scene: NewScene, laptop: Laptop, monkeypatch: pytest.MonkeyPatch, said: str, why: str
) -> None:
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 0.0)
    found = scene(NOTHING_LEFT, says(said))
    complete(laptop, 0)
    laptop.keep_manifest(1, complete=False)
    with pytest.raises(CheckpointError) as caught:
        found.retried()
    assert caught.value.message.startswith(f"run {RUN} is not tried again: digits is not deleted: ")
    assert why in f"{caught.value.message}\n{caught.value.details}"
    assert not found.machines.destroyed
    assert not found.within


def test_a_stopped_node_is_started_again_to_upload_what_only_it_has(scene: NewScene, laptop: Laptop) -> None:
    asked: list[str] = []

    def flush(channel: Any) -> None:
        asked.append("flush")
        laptop.keep_manifest(1, complete=True)
        NOTHING_LEFT(channel)

    def power_off(channel: Any) -> None:
        says("{}\n")(channel)
        # A container takes a moment to end.
        threading.Timer(1.0, found.machines.change, [1, NodeState.STOPPED]).start()

    found = scene(NOTHING_LEFT, flush)
    found.vms[1].programs["hvdcloud-node poweroff"] = power_off
    complete(laptop, 0)
    found.machines.change(1, NodeState.STOPPED)
    assert found.retried().state == "succeeded"
    assert found.machines.revived == ["digits-1"]
    assert asked == ["flush"], "a node that switches off is not waited for again"


def test_a_stopped_node_that_cannot_be_started_again_stays(
    scene: NewScene, laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 0.0)
    found = scene(NOTHING_LEFT, NOTHING_LEFT)
    complete(laptop, 0)
    found.machines.revives = False
    found.machines.change(1, NodeState.STOPPED)
    with pytest.raises(CheckpointError, match="node digits-1 is stopped and may hold more"):
        found.retried()


def test_a_cluster_that_was_deleted_meanwhile_is_not_made_again(scene: NewScene) -> None:
    def deleted() -> RunResult:
        found.context.state.journal.record("down", cluster_id="abcdef")
        return LOST

    found = scene(NOTHING_LEFT, NOTHING_LEFT, ends=[deleted])
    assert found.retried().state == "lost"
    assert not found.within


def test_ctrl_c_before_the_next_run_leaves_nothing(scene: NewScene, laptop: Laptop) -> None:
    def interrupt() -> RunResult:
        raise KeyboardInterrupt

    found = scene(NOTHING_LEFT, NOTHING_LEFT, ends=[LOST, interrupt])
    complete(laptop, 0, 1)
    with pytest.raises(InterruptedByUserError, match="between two attempts; no node of it is left") as caught:
        found.retried()
    assert f"hvdcloud run --name digits --resume {RUN}" in caught.value.hint
    assert found.machines.cluster_now is None


def test_the_next_cluster_is_reached_over_sessions_of_its_own(scene: NewScene) -> None:
    found = scene(NOTHING_LEFT)
    first = found.context.fleet(found.first)
    assert found.context.fleet(found.first) is first
    assert found.context.fleet(replace(found.first, id="bbbbbb")) is not first
