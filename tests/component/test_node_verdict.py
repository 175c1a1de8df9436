"""How a run ended does not depend on how late its nodes say so: agents and supervisors that freeze at its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from hvdcloud.node.run.log import framed
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, wait_gone

SUCCEEDED = ("succeeded", 0, "")


def prepare(cluster: NodeCluster, *, then: str) -> None:
    """Prepare a run whose ranks do nothing until they may continue with `then`, in Python; `rank` is known."""
    script = (
        "import os, pathlib, time\n"
        "rank = int(os.environ.get('HOROVOD_RANK', '0'))\n"
        "pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'], f'of-{rank}').write_text('weights')\n"
        "os.write(1, b'at work\\n')\n"
        f"while not pathlib.Path({str(cluster.base / 'told')!r}).exists():\n    time.sleep(0.01)\n" + then
    )
    cluster.prepare([sys.executable, "-c", script])


def start(cluster: NodeCluster, *, then: str, gloo_timeout: float = 60.0) -> None:
    """Start such a run; all ranks are at work."""
    prepare(cluster, then=then)
    assert cluster.launch(gloo_timeout=gloo_timeout) == {"ok": True}
    cluster.wait_for_log("at work", times=len(cluster.names))


def tell(cluster: NodeCluster) -> None:
    (cluster.base / "told").touch()


def send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def wait_finishing(cluster: NodeCluster) -> None:
    """Until the supervisor has asked every node to end the run."""
    file = cluster.run_dir() / "state.json"
    until(lambda: json.loads(file.read_text())["state"] == "finishing", what="the end's begin")


def wait_ended(cluster: NodeCluster, name: str, rank: int) -> None:
    """Until a rank has ended on its node, after its last word to the agent."""

    def runs() -> bool:
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if (process.info["cmdline"] or [])[-2:] == ["rank", RUN] and process.status() != psutil.STATUS_ZOMBIE:
                    has = process.environ()
                    if (has.get("HOROVOD_RANK"), has.get("HVDCLOUD_NODE_ROOT")) == (str(rank), str(cluster.root(name))):
                        return True
        return False

    until(lambda: not runs(), what=f"the end of rank {rank}")


def verdict(state: dict[str, Any]) -> tuple[str, int | None, str]:
    return state["result"], state["exit_code"], state["reason"]


@pytest.mark.parametrize(
    "slow",
    [pytest.param(("n0",), marks=pytest.mark.nightly), pytest.param(("n1",), marks=pytest.mark.nightly), ("n0", "n1")],
)
def test_a_run_has_succeeded_however_late_its_agents_say_so(cluster: NodeCluster, slow: tuple[str, ...]) -> None:
    start(cluster, then="")
    frozen = [cluster.agent(name) for name in slow]
    send(frozen, signal.SIGSTOP)

    tell(cluster)
    wait_finishing(cluster)
    send(frozen, signal.SIGCONT)

    state = cluster.wait_done()
    assert verdict(state) == SUCCEEDED
    assert [(rank["rank"], rank["exit_code"]) for rank in state["ranks"]] == [(0, 0), (1, 0)]
    assert (state["checkpoints"]["complete"], state["checkpoints"]["files"]) == (True, 2)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_supervisor_that_froze_counts_what_happened_before_it_asked_for_the_end(
    cluster: NodeCluster, *, stopped: bool
) -> None:
    start(cluster, then="")
    supervisor, horovodrun, slow = cluster.supervisor(), cluster.horovodrun(), cluster.agent("n1")
    send([supervisor, slow], signal.SIGSTOP)

    tell(cluster)
    wait_gone([horovodrun])
    if stopped:
        send([supervisor], signal.SIGTERM)
    send([supervisor], signal.SIGCONT)
    wait_finishing(cluster)
    send([slow], signal.SIGCONT)

    assert verdict(cluster.wait_done()) == SUCCEEDED


def test_agents_that_gave_up_a_frozen_supervisor_have_said_before_how_their_ranks_ended(cluster: NodeCluster) -> None:
    # The agents wait for 8 s: the ranks end within that on a busy machine too.
    start(cluster, then="", gloo_timeout=16.0)
    supervisor, agents = cluster.supervisor(), [cluster.agent(name) for name in cluster.names]
    send([supervisor], signal.SIGSTOP)

    tell(cluster)
    wait_gone(agents)
    send([supervisor], signal.SIGCONT)

    assert verdict(cluster.wait_done()) == SUCCEEDED


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param("time.sleep(600)", id="which the launcher ends"),
        pytest.param("time.sleep(0.1)\n    raise RuntimeError('peer gone')", id="which fails in consequence"),
    ],
)
def test_the_rank_that_failed_first_counts_although_its_peer_is_heard_of_first(cluster: NodeCluster, peer: str) -> None:
    start(cluster, then=f"if rank == 0:\n    {peer}\nraise SystemExit(3)")
    slow = cluster.agent("n1")
    send([slow], signal.SIGSTOP)

    tell(cluster)
    wait_finishing(cluster)
    send([slow], signal.SIGCONT)

    assert verdict(cluster.wait_done()) == ("failed", 3, "rank 1 on n1 exited with 3")


def test_what_the_end_of_the_run_does_to_a_rank_is_not_its_failure(cluster: NodeCluster) -> None:
    start(cluster, then="raise SystemExit(3)")
    supervisor, slow = cluster.supervisor(), cluster.agent("n1")
    send([slow], signal.SIGSTOP)

    send([supervisor], signal.SIGTERM)
    wait_finishing(cluster)
    # The peer's agent has not been able to end it yet.
    tell(cluster)
    wait_ended(cluster, "n1", 1)
    send([slow], signal.SIGCONT)

    assert verdict(cluster.wait_done()) == ("stopped", None, "stopped on request")


def test_an_agent_that_is_told_to_end_the_run_tells_first_who_had_ended_before(cluster: NodeCluster) -> None:
    prepare(cluster, then="")
    agent = cluster.start("n0", "agent", RUN)
    assert agent.stdin
    assert agent.stdout
    agent.stdin.write(b'{"type": "hello", "silence": 600}\n')
    agent.stdin.flush()
    with cluster.start("n0", "rank", RUN) as rank:
        assert rank.stdout
        assert rank.stdout.readline() == framed(b"at work\n")
        # Both arrive while it is frozen, and it will read the order first.
        send([agent.pid], signal.SIGSTOP)
        agent.stdin.write(b'{"type": "finish"}\n')
        agent.stdin.flush()
        tell(cluster)
        rank.wait(10)
    send([agent.pid], signal.SIGCONT)

    said = [message for message in map(json.loads, agent.stdout) if message["type"] != "beat"]
    agent.communicate(timeout=300)
    assert [message["type"] for message in said] == ["ready", "rank", "ended", "quiet", "finished"]
    assert (said[2]["record"]["exit_code"], said[2]["reaped"]) == (0, False)
