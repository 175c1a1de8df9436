"""`python -m tests.bench.step_cost`: what a training step costs under hvdcloud, against horovodrun started by hand.

One cluster of two nodes; the same job, in the same containers, with the same arguments of horovodrun, under `hvdcloud
run` and by `docker exec` in turn. Each begins every other round, so that a machine that gets slower gets slower for
both. While ranks train under hvdcloud, the processor time of everything in a node's container is read that is neither
the job nor horovodrun.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from hvdcloud.runs.horovod_args import horovodrun_argv
from hvdcloud.runs.spec import Host
from tests.bench.measure import BenchError, output
from tests.bench.publish import JOB, ends_in_words, publish, say, table
from tests.support.harness import Project, brought_up, project_in, share_engine

FEWEST_ROUNDS = 5
"""Fewer do not replace the results that are committed."""
WAYS = ("hvdcloud", "by hand")
LIMIT_SECONDS = 600.0
_STEPS = re.compile(r"bench-steps (\S+)")
_NOT_OURS = ("steps.py", "horovodrun")
"""In the command lines of ranks and of Horovod's launcher."""


def used(node: str) -> dict[int, float]:
    """Seconds of a processor that each process of ours in the node's container, and its ended children, took."""
    found = {}
    for line in output("docker", "top", node, "-eo", "pid,args").splitlines()[1:]:
        pid, _, command = line.strip().partition(" ")
        # `hvdcloud-node rank` has the job's command line neither before nor after it has started it.
        if "hvdcloud" in command or not any(word in command for word in _NOT_OURS):
            try:
                times = psutil.Process(int(pid)).cpu_times()
            except psutil.NoSuchProcess:
                continue
            found[int(pid)] = times.user + times.system + times.children_user + times.children_system
    return found


def trains(node: str) -> bool:
    """Whether a rank runs there."""
    return re.search(r"python\S* steps\.py", output("docker", "top", node, "-eo", "pid,args")) is not None


def under_hvdcloud(project: Project, *, seconds: float) -> tuple[float, list[float]]:
    """Steps per second, and the share of a core that everything of ours took on each node while ranks trained."""
    nodes, deadline = [f"{project.name}-{index}" for index in range(2)], time.monotonic() + LIMIT_SECONDS
    with project.started("run", "--fresh") as process:
        assert process.stdout is not None
        while not all(map(trains, nodes)):
            if process.poll() is not None or time.monotonic() > deadline:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
                raise BenchError(f"no rank trains:\n{process.stdout.read()[-2000:]}")
            time.sleep(0.2)
        # Python, PyTorch and the first steps are no training.
        time.sleep(5.0)
        before, began = [used(node) for node in nodes], time.monotonic()
        time.sleep(seconds)
        after, took = [used(node) for node in nodes], time.monotonic() - began
        if not all(map(trains, nodes)):
            raise BenchError("the job was over too soon: take more --steps")
        text = process.stdout.read()
    shares = [
        sum(each - old.get(pid, 0.0) for pid, each in new.items()) / took
        for old, new in zip(before, after, strict=True)
    ]
    return steps_in(text), shares


def by_hand(project: Project, *, steps: int) -> float:
    """Steps per second of the code that the last run has left in the containers."""
    hosts = [Host(name=f"{project.name}-{index}", slots=1) for index in range(2)]
    argv = [*horovodrun_argv(hosts=hosts, ranks=2, interface="eth0"), "python", "steps.py", str(steps)]
    command = ["docker", "exec", "--workdir", "/workspace", "--env", "OMP_NUM_THREADS=1", hosts[0].name, *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    return steps_in(done.stdout + done.stderr)


def steps_in(text: str) -> float:
    """What rank 0 said. Raises BenchError: nothing."""
    if (found := _STEPS.search(text)) is None:
        raise BenchError(f"the job did not say how many steps it did a second:\n{text[-2000:]}")
    return float(found[1])


def markdown(result: dict[str, Any]) -> str:
    """As a table."""
    steps: dict[str, list[float]] = result["steps"]
    medians = {way: statistics.median(steps[way]) for way in WAYS}
    rows = [[way, f"{medians[way]:.2f}", f"{min(steps[way]):.2f} to {max(steps[way]):.2f}"] for way in reversed(WAYS)]
    rows.append(["ratio of the medians", f"{medians['hvdcloud'] / medians['by hand']:.3f}", ""])
    cores = 100 * statistics.median(result["cores_used"])
    return (
        f"{table(['training, two ranks on two nodes', 'steps per second', 'range'], rows)}\n\n"
        f"Everything of hvdcloud's on a node, while its rank trains: {cores:.2f} % of a core (median).\n"
        f"{len(steps['hvdcloud'])} rounds on {result['cores']} cores, whose load was {result['load']:.1f} "
        "before: Gloo, 20 gradient tensors, 10.5 MB, a step.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.step_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help=f"(default {FEWEST_ROUNDS})")
    parser.add_argument("--steps", type=int, default=400, help="of each run (default 400)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which processes are watched (default 10)")
    parser.add_argument("--results", type=Path, help="folder for step_cost.json and step_cost.md")
    options = parser.parse_args()
    from hvdcloud.engine import connect

    share_engine()
    result: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "cores_used": []}
    result["steps"] = {way: [] for way in WAYS}
    temporary = tempfile.TemporaryDirectory(prefix="hvd-bench-", ignore_cleanup_errors=True)
    with ends_in_words(), closing(connect()) as engine, temporary as folder:
        project = project_in(Path(folder), f"t-bench-{secrets.token_hex(2)}")
        project.write("steps.py", (JOB / "steps.py").read_text())
        project.configure(run={"command": f"python steps.py {options.steps}", "env": {"OMP_NUM_THREADS": "1"}})
        project.hvdcloud("build", timeout=1200)
        with brought_up(project, engine):
            for turn in range(1, options.rounds + 1):
                for way in WAYS[:: 1 if turn % 2 else -1]:
                    if way == "hvdcloud":
                        rate, shares = under_hvdcloud(project, seconds=options.seconds)
                        result["cores_used"] += shares
                    else:
                        rate = by_hand(project, steps=options.steps)
                    result["steps"][way].append(rate)
                    say(f"round {turn}/{options.rounds}, {way}: {rate:.2f} steps a second")
    publish("step_cost", result, markdown(result), folder=options.results, complete=options.rounds >= FEWEST_ROUNDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
