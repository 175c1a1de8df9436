"""`logs` of a head that cannot read a log: the real node program, behind an in-process sshd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, NodeError
from hvdcloud.lifecycle import logs
from tests.support.node_buckets import BucketNode
from tests.support.vanishing import RUN, Laptop, NewVm, Program, says

RUNNING = {"run": RUN, "state": "running"}
ENDED = {"run": RUN, "state": "done", "result": "succeeded"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BucketNode]:
    node = BucketNode(tmp_path / "node", 0)
    yield node
    node.vm.close()


@pytest.mark.parametrize("follow", [False, True], ids=["once", "follow"])
@pytest.mark.parametrize("state", [RUNNING, ENDED], ids=["running", "ended"])
def test_what_keeps_a_head_from_reading_a_log_is_an_error_and_no_output(
    laptop: Laptop, node: BucketNode, state: object, follow: bool
) -> None:
    # It knows the run, and has no log of it.
    folder = node.root / "var/lib/hvdcloud/runs" / RUN
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(state))
    context, _, _ = laptop.context([node.vm])
    with context, pytest.raises(NodeError) as raised:
        logs.logs(context, RUN, follow_it=follow)
    assert raised.value.code == ExitCode.NODE
    Console(err=laptop.err).error(raised.value)
    # A busy machine may have shown before what it waits for.
    assert laptop.err.getvalue().splitlines()[-3:] == [
        f"error: node digits-0 says: run {RUN} has no log on this node",
        "  node digits-0 says: `hvdcloud status` shows the runs",
        "  → hvdcloud status --name digits shows the nodes and their runs",
    ]
    assert laptop.out.getvalue() == ""


def dies(channel: paramiko.Channel) -> None:
    channel.sendall(b"[0] epoch 1\n")
    channel.sendall_stderr(b"Killed\n")
    channel.send_exit_status(137)
    channel.close()


@pytest.mark.parametrize("follow", [False, True], ids=["once", "follow"])
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (dies, "node digits-0: `logs` ended with exit code 137"),
        (says("[0] epoch 1\n", error="{}\n"), "node digits-0: `logs` ended without the state of the run"),
    ],
    ids=["killed", "no state"],
)
def test_a_log_without_an_end_is_shown_and_then_the_error(
    laptop: Laptop, new_vm: NewVm, program: Program, message: str, follow: bool
) -> None:
    states = says(json.dumps({"runs": [RUNNING]}) + "\n")
    vm = new_vm({"hvdcloud-node state": states, "hvdcloud-node logs": program})
    context, _, _ = laptop.context([vm])
    with context, pytest.raises(NodeError) as raised:
        logs.logs(context, RUN, follow_it=follow)
    assert (raised.value.message, raised.value.hint) == (message, "hvdcloud ssh 0 opens a shell there")
    assert laptop.out.getvalue() == "[0] epoch 1\n"
