"""A run's life on its nodes: real supervisor, agents and ranks; only ssh and horovodrun are stand-ins."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import stat
import sys
from pathlib import Path

import pytest

from tests.support.harness import until
from tests.support.jobs import assert_wrote
from tests.support.nodes import AT_WORK, RUN, NodeCluster, wait_gone

WITH_PID = ("/bin/sh", "-c", ': > "$HVDCLOUD_CHECKPOINT_DIR/pid-$$"; echo at work; exec sleep 600')
"""`AT_WORK`, after it has left its process id as the name of a checkpoint."""
SECRET = "hunter2-the-secret"


def with_pid(script: str) -> str:
    """The script, after it has left its process id."""
    return (
        "import os, pathlib; rank = int(os.environ['HOROVOD_RANK']); "
        "pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'], f'pid-{os.getpid()}').touch()\n" + script
    )


def test_a_run_that_succeeds_leaves_its_log_its_checkpoints_and_nothing_else(cluster: NodeCluster) -> None:
    cluster.start_run(with_pid("print(f'rank {rank} trains')\nprint('no newline', end='')"))

    state = cluster.wait_done()

    assert (state["result"], state["exit_code"], state["reason"]) == ("succeeded", 0, "")
    assert [(rank["rank"], rank["node"], rank["exit_code"]) for rank in state["ranks"]] == [(0, "n0", 0), (1, "n1", 0)]
    lines = cluster.log().splitlines()
    assert "[0] rank 0 trains" in lines
    assert "[1] rank 1 trains" in lines
    assert lines.count("[0] no newline") == lines.count("[1] no newline") == 1
    assert "[launcher] launcher speaks" in lines
    assert state["checkpoints"] == {
        "complete": True,
        "files": 2,
        "pending": [],
        "errors": [],
        "skipped": [],
        "left_out": [],
        "others": 0,
    }
    assert len(list(cluster.bucket.rglob("pid-*"))) == 2
    wait_gone([cluster.supervisor(), cluster.agent("n0"), cluster.agent("n1")])
    for name in cluster.names:
        assert not (cluster.root(name) / "run/hvdcloud" / RUN).exists()


def test_the_state_says_when_it_trained_and_what_the_log_ends_with(cluster: NodeCluster) -> None:
    said = "epoch 1/2: loss 0.5, accuracy 0.9\nepoch 2/2: loss 0.25"
    cluster.start_run(f"import os\nif os.environ['HOROVOD_RANK'] == '0':\n    print({said!r})\n")
    state = cluster.wait_done()
    moments = [state[key] for key in ("started", "launched", "training_since", "training_until", "ended")]
    assert moments == sorted(moments)
    assert state["metrics"] == {"accuracy": 0.9, "loss": 0.25}


WRITES_BYTES = """
import os, random

def write(descriptor):
    rank = os.environ.get("HOROVOD_RANK") or os.environ["HVDCLOUD_NODE_RANK"]
    source = random.Random(f"{rank} {descriptor}")
    data = source.randbytes(SIZE) + bytes(range(256)) + "[1]<stdout>:münchen ".encode()[:-3] + b"\\xe9\\r\\n last"
    while data:
        data = data[os.write(descriptor, data[: source.randrange(1, 20000)]) :]

write(1)
"""


@pytest.mark.parametrize("launcher", ["horovod", "each"])
def test_what_ranks_write_is_in_the_log_and_the_bucket_byte_for_byte(cluster: NodeCluster, launcher: str) -> None:
    cluster.launcher = launcher
    size = 3_000_000
    cluster.start_run(WRITES_BYTES.replace("SIZE", str(size)))
    assert cluster.wait_done()["result"] == "succeeded"
    log = (cluster.run_dir() / "log").read_bytes()
    for number in (0, 1):
        wrote = random.Random(f"{number} 1").randbytes(size) + bytes(range(256)) + "[1]<stdout>:münchen ".encode()[:-3]
        assert_wrote(number, wrote + b"\xe9\r\n last", log)
    kept = cluster.bucket / "digits" / RUN / ".hvdcloud/log"
    assert until(lambda: kept.exists() and kept.read_bytes(), what="the log in the bucket") == log


EACH = """
import os, sys
print({name: os.environ[name] for name in ("HVDCLOUD_NODE_RANK", "HVDCLOUD_NODES", "HVDCLOUD_HEAD", "MASTER_ADDR")})
print(open(os.environ["HVDCLOUD_HOSTFILE"]).read(), os.environ["MASTER_PORT"].isdigit())
sys.exit(CODE * int(os.environ["HVDCLOUD_NODE_RANK"]))
"""


def test_each_starts_one_rank_on_every_node_that_knows_its_place(cluster: NodeCluster) -> None:
    cluster.launcher = "each"
    cluster.start_run(EACH.replace("CODE", "0"))
    assert cluster.wait_done()["result"] == "succeeded"
    log = cluster.log()
    for rank in (0, 1):
        known = {"HVDCLOUD_NODE_RANK": str(rank), "HVDCLOUD_NODES": "2", "HVDCLOUD_HEAD": "n0", "MASTER_ADDR": "n0"}
        assert f"[{rank}] {known}" in log
        assert f"[{rank}] n0 slots=1\n[{rank}] n1 slots=1\n[{rank}]  True\n" in log
    assert "[launcher]" not in log


def test_each_fails_with_the_code_of_the_rank_that_failed(cluster: NodeCluster) -> None:
    cluster.launcher = "each"
    cluster.start_run(EACH.replace("CODE", "3"))
    state = cluster.wait_done()
    assert (state["result"], state["exit_code"], state["reason"]) == ("failed", 3, "rank 1 on n1 exited with 3")


def test_torchrun_that_is_not_in_the_image_fails_the_run_with_what_to_do(cluster: NodeCluster) -> None:
    cluster.launcher = "torchrun"
    cluster.start_run("print('never')")
    state = cluster.wait_done()
    assert state["result"] == "failed"
    assert "torchrun exited with 1 before its ranks had" in state["reason"]
    assert "node n0 has no torchrun on its PATH" in cluster.log()


@pytest.mark.parametrize(
    ("how", "exit_code", "reason"),
    [
        pytest.param("raise RuntimeError('enough')", 1, "rank 1 on n1 exited with 1", marks=pytest.mark.nightly),
        ("raise SystemExit(3)", 3, "rank 1 on n1 exited with 3"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 on n1 was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 11)", 139, "rank 1 on n1 was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_the_exit_code_is_that_of_the_failed_rank(cluster: NodeCluster, how: str, exit_code: int, reason: str) -> None:
    cluster.start_run(with_pid(f"import time\nif rank == 1:\n    {how}\ntime.sleep(600)"))

    state = cluster.wait_done()

    assert (state["result"], state["exit_code"], state["reason"]) == ("failed", exit_code, reason)
    wait_gone(cluster.user_pids())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/bash\nwords=(one two)\n[[ -n ${words[1]} ]] && echo ${words[1]}", "two"),
        ("#!/bin/bash -u\r\nset -e\r\nif [[ $- == *u*e* || $- == *e*u* ]]; then\r\n  echo strict\r\nfi\r\n", "strict"),
        ("words=(one two); echo ${words[1]}", "two"),
        ("#!/bin/sh\necho ${BASH_VERSION-plain}", None),
        (f"#!/usr/bin/env {Path(sys.executable).name}\nimport sys\nprint(sys.argv)", "['-c']"),
    ],
    ids=["bash", "an option, and line ends of Windows", "bash is the default", "sh", "Python"],
)
def test_a_commands_text_is_run_by_the_program_that_it_names(cluster: NodeCluster, text: str, said: str | None) -> None:
    cluster.prepare([text])
    cluster.launch()
    assert cluster.wait_done()["result"] == "succeeded", cluster.log()
    if said is not None:
        assert f"[1] {said}" in cluster.log().splitlines()


def test_stop_ends_the_run_everywhere(cluster: NodeCluster) -> None:
    cluster.start_run(WITH_PID)
    cluster.wait_for_log("at work", times=2)

    state = cluster.verb("n0", "stop", RUN)

    assert (state["state"], state["result"], state["exit_code"]) == ("done", "stopped", None)
    wait_gone(cluster.user_pids())
    assert cluster.verb("n0", "stop", RUN)["result"] == "stopped"


@pytest.mark.parametrize("victim", ["supervisor", "agent of n0", "agent of n1"])
def test_no_rank_is_left_when_the_node_program_is_killed(cluster: NodeCluster, victim: str) -> None:
    cluster.start_run(WITH_PID)
    cluster.wait_for_log("at work", times=2)

    os.kill(cluster.supervisor() if victim == "supervisor" else cluster.agent(victim[-2:]), signal.SIGKILL)

    wait_gone(cluster.user_pids())
    state = cluster.wait_done()
    assert (state["result"], state["exit_code"]) == ("lost", None)
    assert "supervisor" in state["reason"] if victim == "supervisor" else victim[-2:] in state["reason"]


def test_a_killed_launcher_is_named(cluster: NodeCluster) -> None:
    cluster.start_run(WITH_PID)
    cluster.wait_for_log("at work", times=2)

    os.kill(cluster.horovodrun(), signal.SIGKILL)

    state = cluster.wait_done()
    assert (state["result"], state["exit_code"]) == ("failed", 137)
    assert state["reason"] == "horovodrun was killed by signal 9 (SIGKILL)"
    wait_gone(cluster.user_pids())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_an_agent_that_freezes_is_given_up_and_replaced(cluster: NodeCluster) -> None:
    cluster.start_run(WITH_PID)
    cluster.wait_for_log("at work", times=2)

    os.kill(cluster.agent("n1"), signal.SIGSTOP)

    state = cluster.wait_done()
    assert (state["result"], state["nodes_lost"]) == ("lost", [])
    assert "n1" in state["reason"]
    wait_gone(cluster.user_pids())


def test_a_node_that_cannot_be_reached_is_named_with_the_reason(cluster: NodeCluster) -> None:
    (cluster.base / "unreachable-n1").touch()
    cluster.start_run(AT_WORK)

    state = cluster.wait_done()

    assert (state["result"], state["nodes_lost"]) == ("lost", ["n1"])
    assert "No route to host" in state["reason"]
    assert not state["checkpoints"]["complete"]


def test_messages_that_make_no_sense_do_not_end_the_run(cluster: NodeCluster) -> None:
    nonsense = (
        *(
            {"type": kind}
            for kind in ("rank", "ended", "reaped", "ending", "leaving", "saved", "finished", "connected")
        ),
        {"type": "rank", "rank": 1e400, "pid": "x"},
        {"type": "ended", "record": {"rank": {}}, "ago": []},
        {"type": "saved", "seconds": "soon"},
        {"type": []},
    )
    (cluster.base / "says-n1").write_text("".join(json.dumps(each) + "\n" for each in nonsense) + "[" * 100_000 + "\n")

    cluster.start_run("print('trained')")

    state = cluster.wait_done()
    assert (state["result"], state["exit_code"]) == ("succeeded", 0), state
    assert cluster.log().count("n1 sent a message that cannot be used") == 1


def test_background_processes_that_cleared_their_environment_are_ended_too(cluster: NodeCluster) -> None:
    script = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], env={}, start_new_session=True)\n"
        "pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'], f'pid-{child.pid}').touch()"
    )
    cluster.start_run(with_pid(script))

    state = cluster.wait_done()

    assert state["result"] == "succeeded"
    wait_gone(cluster.user_pids())


def test_one_run_at_a_time_and_its_code_stays_as_it_is(cluster: NodeCluster) -> None:
    cluster.start_run(AT_WORK)
    cluster.wait_for_log("at work", times=2)
    other = "20261121-101113-abcdef"

    refused = cluster.prepare(["true"], run=other, code={"train.py": "changed"})

    assert [answer.get("active") for answer in refused] == [RUN, RUN]
    assert (cluster.root("n1") / "workspace/train.py").read_text() == "print('trains')\n"
    cluster.verb("n0", "stop", RUN)
    again = cluster.launch()
    assert "already launched" in again["error"]


def test_secrets_reach_the_ranks_and_nobody_else(cluster: NodeCluster) -> None:
    script = "import hashlib, os; print(hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest()[:8], flush=True)"
    cluster.start_run(script + "; import time; time.sleep(600)", env={"TOKEN": SECRET})
    cluster.wait_for_log("] ", times=3)

    env_file = cluster.root("n1") / "run/hvdcloud" / RUN / "env.json"
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(env_file.parent.stat().st_mode) == 0o700
    seen = (cluster.base / "horovodrun.seen").read_text()
    # Nor has it what the image or this test's process has in its environment.
    assert not [word for word in (SECRET, "FROM_THE_IMAGE", "GIT_CONFIG_GLOBAL") if word in seen]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        assert SECRET.encode() not in _read(path)
    cluster.verb("n0", "stop", RUN)

    assert hashlib.sha256(SECRET.encode()).hexdigest()[:8] in cluster.log()
    for name in cluster.names:
        for path in cluster.root(name).rglob("*"):
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_full_disk_ends_the_run_and_its_state_says_so(cluster: NodeCluster) -> None:
    cluster.prepare(["sh", "-c", "while :; do echo more; done"])
    (cluster.run_dir() / "log").symlink_to("/dev/full")
    cluster.launch()

    state = cluster.wait_done()

    assert (state["state"], state["result"]) == ("done", "failed")
    assert "No space left on device" in state["reason"]


def test_logs_follow_until_the_end_and_start_where_they_are_told(cluster: NodeCluster) -> None:
    cluster.start_run("import time; print('first', flush=True); time.sleep(0.5); print('last')")

    out, errors = cluster.start("n0", "logs", RUN, "--follow").communicate(timeout=300)

    assert out.decode() == cluster.log()
    assert out.count(b"last") == 2
    assert json.loads(errors.splitlines()[-1])["result"] == "succeeded"
    out, _ = cluster.start("n0", "logs", RUN, "--offset", "9").communicate(timeout=300)
    assert out.decode() == cluster.log()[9:]


def test_flush_uploads_what_a_supervisor_and_agents_left_that_were_all_killed(cluster: NodeCluster) -> None:
    cluster.start_run(WITH_PID)
    cluster.wait_for_log("at work", times=2)
    everybody = [cluster.supervisor(), cluster.agent("n0"), cluster.agent("n1")]

    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    late = cluster.root("n1") / "var/lib/hvdcloud/checkpoints" / RUN / "late.pt"
    late.write_text("weights")
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)

    # Every rank notices that its agent is gone.
    wait_gone(cluster.user_pids())
    assert cluster.state()["result"] == "lost"
    assert cluster.verb("n0", "stop", RUN)["result"] == "lost"
    assert json.loads((cluster.run_dir() / "state.json").read_text())["state"] == "done"

    answer = cluster.verb("n1", "flush")

    assert answer == {"runs": {RUN: {"pending": [], "errors": []}}}
    assert (cluster.bucket / "digits" / RUN / "@node-1" / "late.pt").read_text() == "weights"
    assert cluster.verb("n1", "flush") == {"runs": {}}
