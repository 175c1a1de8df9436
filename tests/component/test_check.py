"""`hvdcloud check` from the laptop's side: what it asks nodes, what it leaves, and when it replaces nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import paramiko
import pytest

from hvdcloud.cluster.model import Leftover, Node
from hvdcloud.cluster.record import MemberRecord
from hvdcloud.errors import CheckpointError, ExitCode, NodeError, UsageError
from hvdcloud.lifecycle.check import CheckResult, check
from hvdcloud.lifecycle.context import Context
from hvdcloud.providers.base import NodeBucket
from tests.support.vanishing import RUN, Laptop, Machines, NewVm, Program, says

MACHINE = {
    "cores": 8,
    "cpu": {"speed": 400e6, "share": 0.9},
    "disk": {"write": 2e8},
    "bucket": {"up": 9e7, "down": 9e7},
}
BROKEN = {**MACHINE, "disk": {"error": "writing failed: Input/output error"}}
PAIR = {"ranks": 2, "latency": 0.002, "size": 8_000_000, "seconds": 0.01}


@dataclass
class Scene:
    """A cluster of three nodes whose answers are set in advance, and what they were asked."""

    context: Context
    provider: Provider
    asked: list[tuple[str, str]] = field(default_factory=list)

    def check(self, **options: Any) -> CheckResult:
        return check(self.context, seconds=1.0, size=1 << 20, **options)

    def times(self, verb: str) -> int:
        return sum(asked.startswith(f"hvdcloud-node {verb}") for _, asked in self.asked)


@dataclass
class Provider(Machines):
    """Says what was to be deleted, and deletes nothing."""

    shrunk: list[int] = field(default_factory=list)

    def bucket_as_seen_by_nodes(self, *, bucket: str, bucket_endpoint: str | None) -> NodeBucket:
        return NodeBucket(bucket=bucket, bucket_endpoint=bucket_endpoint)

    def console(self, node: Node) -> str:
        return ""

    def shrink(self, name: str, indices: Sequence[int], **_: Any) -> Sequence[Leftover]:
        self.shrunk += indices
        return []


@pytest.fixture
def scene(laptop: Laptop, new_vm: NewVm) -> Callable[..., Scene]:
    """Makes the scene.

    Args:
        machines: what each node answers to `check-machine`.
        flush: what each node answers to `flush`.
        collective: what the head does for `check-collective`; default: it measures.
        state: of the newest run.
    """

    def make(
        *,
        machines: Sequence[Any] = (MACHINE,) * 3,
        flush: Any = None,
        collective: Program | None = None,
        state: str = "done",
    ) -> Scene:
        runs = {"runs": [{"run": RUN, "state": state, "result": "succeeded" if state == "done" else None}]}
        asked: list[tuple[str, str]] = []

        def noted(node: str, verb: str, program: Program) -> Program:
            def run(channel: paramiko.Channel) -> None:
                asked.append((node, verb))
                program(channel)

            return run

        def measure(channel: paramiko.Channel) -> None:
            request = json.loads(channel.makefile("rb").readline())
            says(json.dumps({"results": [PAIR for _ in request["jobs"]]}))(channel)

        vms = []
        for index, machine in enumerate(machines):
            programs = {
                "hvdcloud-node state": says(json.dumps(runs)),
                "hvdcloud-node check-machine": says(json.dumps(machine)),
                "hvdcloud-node check-collective": collective or measure,
                "hvdcloud-node check-end": says('{"left": []}'),
                "hvdcloud-node flush": says(json.dumps(flush or {"runs": {}})),
            }
            vms.append(new_vm({verb: noted(f"digits-{index}", verb, run) for verb, run in programs.items()}))
        context, cluster, _ = laptop.context(vms)
        context.__dict__["provider"] = provider = Provider(cluster)
        record = context.record(cluster)
        members = tuple(MemberRecord(name=node.name, cores=8, interface="eth0") for node in cluster.nodes)
        context.state.save(replace(record, nodes=members, size=3))
        return Scene(context=context, provider=provider, asked=asked)

    return make


def all_reduces_that_fail_with(node: str) -> Program:
    """What a head does for `check-collective` where no all-reduce with this node ends well."""

    def measure(channel: paramiko.Channel) -> None:
        request = json.loads(channel.makefile("rb").readline())
        results = [{"error": "no answer"} if f"{node}:" in " ".join(job) else PAIR for job in request["jobs"]]
        says(json.dumps({"results": results}))(channel)

    return measure


def test_every_node_is_measured_alone_in_pairs_and_together_and_nothing_stays_on_it(scene: Any) -> None:
    here = scene()
    result = here.check()
    assert [(each.node, each.health.value) for each in result.nodes] == [
        (f"digits-{index}", "ok") for index in range(3)
    ]
    assert {frozenset(each.nodes) for each in result.pairs} == {
        frozenset({"digits-0", "digits-1"}),
        frozenset({"digits-0", "digits-2"}),
        frozenset({"digits-1", "digits-2"}),
    }
    assert result.together is not None
    assert result.exit_code is ExitCode.OK
    # Three rounds of one pair, and all together; then every node ends what is left.
    assert (here.times("check-machine"), here.times("check-collective"), here.times("check-end")) == (3, 4, 3)


def test_a_bad_node_is_measured_again_before_it_is_called_bad(scene: Any) -> None:
    here = scene(machines=(MACHINE, BROKEN, MACHINE))
    result = here.check()
    assert (result.bad, result.exit_code) == (["digits-1"], ExitCode.NODE)
    assert here.times("check-machine") == 9
    # Three rounds of one pair, and all together: it is not its pairs that make it bad.
    assert here.times("check-collective") == 4
    assert here.provider.shrunk == []


def test_a_node_with_bad_pairs_is_in_them_again_before_it_is_called_bad(scene: Any) -> None:
    here = scene(collective=all_reduces_that_fail_with("digits-1"))
    assert here.check().bad == ["digits-1"]
    # Three rounds of one pair, two of them again, and all together.
    assert (here.times("check-machine"), here.times("check-collective")) == (3, 6)


def test_what_a_gpu_says_is_broken_is_not_measured_again(scene: Any) -> None:
    errors = {**MACHINE, "gpus": [{"index": 0, "name": "Tesla T4", "ecc_errors": 5}]}
    here = scene(machines=(MACHINE, errors, MACHINE))
    assert here.check().bad == ["digits-1"]
    assert (here.times("check-machine"), here.times("check-collective")) == (3, 4)


def test_a_check_that_fails_half_way_still_ends_what_runs_on_the_nodes(scene: Any) -> None:
    here = scene(collective=says("no JSON"))
    with pytest.raises(NodeError, match="digits-0"):
        here.check()
    assert here.times("check-end") == 3


def test_a_bad_node_with_checkpoints_that_are_nowhere_else_is_not_replaced(scene: Any) -> None:
    pending = {"runs": {RUN: {"pending": ["epoch-3.pt"], "errors": []}}}
    here = scene(machines=(MACHINE, BROKEN, MACHINE), flush=pending)
    with pytest.raises(CheckpointError, match="digits-1 cannot be deleted") as refused:
        here.check(replace_bad=True)
    assert "check --replace-bad again; --force deletes all the same" in refused.value.hint
    # All together would be measured after the replacement.
    assert here.times("check-collective") == 3
    assert here.provider.shrunk == []


def test_a_bad_head_is_never_replaced(scene: Any) -> None:
    here = scene(machines=(BROKEN, MACHINE, MACHINE))
    with pytest.raises(NodeError, match="the head digits-0 is bad") as refused:
        here.check(replace_bad=True, force=True)
    assert "digits-0: disk: writing failed" in refused.value.details
    assert here.provider.shrunk == []


def test_nothing_is_measured_while_a_run_is_active(scene: Any) -> None:
    here = scene(state="running")
    with pytest.raises(UsageError, match=f"run {RUN} is active"):
        here.check()
    assert here.times("check-machine") == 0


def test_a_node_with_an_older_program_says_so_and_is_not_bad(scene: Any) -> None:
    here = scene(machines=({"error": "hvdcloud-node has no verb 'check-machine'", "hint": ""}, MACHINE, MACHINE))
    with pytest.raises(NodeError, match="has no verb"):
        here.check()
