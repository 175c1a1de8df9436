"""`python -m tests.bench.slow_ranks`: what counting the waits of ranks costs a step, and which slow ranks that names.

One cluster of two nodes; the same job of 200 gradient tensors a step, with and without the count in turn, each
beginning every other round, so that a machine that gets slower gets slower for both. Rank 0 says how long its steps
took. Then rank 1 computes each step longer than rank 0, by several shares of it.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.bench.elastic import cluster
from tests.bench.measure import BenchError
from tests.bench.publish import ends_in_words, publish, say
from tests.bench.workplace import JOB
from tests.support.harness import Project, project_in, share_engine

FEWEST_RUNS = 5
"""Fewer do not replace the results that are committed."""
WAYS = {"counted": "", "not counted": "env -u HVDCLOUD_WAITS "}
"""What stands before the job's command."""
SLOWER = (0.0, 0.25, 0.5, 1.0)
"""By which part of a step rank 1 computes longer."""
ENV = {"OMP_NUM_THREADS": "1"}
_STEP = re.compile(r"bench-step (\S+) (\S+)")


def measure(project: Project, *, runs: int) -> dict[str, list[list[float]]]:
    """The median step and the shortest one of every run, in seconds."""
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for turn in range(runs + 1):
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            project.configure(run={"command": f"{WAYS[way]}python layers.py", "env": ENV})
            step = _STEP.search(project.hvdcloud("run", "--fresh").out)
            if step is None:
                raise BenchError("the job did not say how long its steps took")
            # The first round warms up.
            if turn:
                found[way].append([float(each) for each in step.groups()])
                say(f"round {turn}/{runs}, {way}: {1000 * found[way][-1][0]:.3f} ms a step")
    return found


def name(project: Project) -> list[dict[str, Any]]:
    """For each of SLOWER: the part of the time that each rank waited, and which ranks are named."""
    found = []
    for slower in SLOWER:
        project.configure(run={"command": f"python layers.py --slower {slower} --seconds 15", "env": ENV})
        run = project.hvdcloud("run", "--fresh", "--json").json["result"]
        waited = {each["rank"]: each["waited"] / each["seconds"] for each in run["waits"]}
        named = run["slow_ranks"]["ranks"] if run["slow_ranks"] else []
        found.append({"slower": slower, "waited": [waited[rank] for rank in sorted(waited)], "named": named})
        say(f"rank 1 slower by {slower:.0%}: {found[-1]}")
    return found


def markdown(result: dict[str, Any]) -> str:
    """As two tables."""
    lines = ["| waits of ranks | median step | shortest step |", "| --- | ---: | ---: |"]
    medians: dict[str, list[float]] = {}
    for way, samples in result["seconds"].items():
        medians[way] = [statistics.median(column) for column in zip(*samples, strict=True)]
        lines.append(f"| {way} | {1000 * medians[way][0]:.3f} ms | {1000 * medians[way][1]:.3f} ms |")
    ratios = [each / bare for each, bare in zip(medians["counted"], medians["not counted"], strict=True)]
    lines.append(f"| ratio | {ratios[0]:.3f} | {ratios[1]:.3f} |")
    lines.append(
        f"\nMedians of {len(result['seconds']['counted'])} runs each, in turn: two ranks on two nodes on "
        f"{result['cores']} cores, Gloo, 200 gradient tensors a step."
    )
    lines += ["", "| rank 1 computes longer by | rank 0 waits | rank 1 waits | named |", "| ---: | ---: | ---: | --- |"]
    for each in result["named"]:
        fast, slow = each["waited"]
        names = ", ".join(f"rank {rank}" for rank in each["named"]) or "none"
        lines.append(f"| {each['slower']:.0%} | {fast:.0%} | {slow:.0%} | {names} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.slow_ranks", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help=f"rounds (default {FEWEST_RUNS})")
    parser.add_argument("--results", type=Path, help="folder for slow_ranks.json and slow_ranks.md")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    from hvdcloud.engine import connect

    share_engine()
    load = os.getloadavg()[0]
    temporary = tempfile.TemporaryDirectory(prefix="hvd-bench-", ignore_cleanup_errors=True)
    with ends_in_words(), closing(connect()) as engine, temporary as folder:
        project = project_in(Path(folder), f"t-bench-{secrets.token_hex(2)}")
        project.write("layers.py", (JOB / "layers.py").read_text())
        project.hvdcloud("build", timeout=1200)
        with cluster(project, engine):
            seconds, named = measure(project, runs=options.runs), name(project)
    result = {"cores": os.cpu_count(), "load_before": load, "seconds": seconds, "named": named}
    complete = options.runs >= FEWEST_RUNS
    publish("slow_ranks", result, markdown(result), folder=options.results, complete=complete)
    return 0


if __name__ == "__main__":
    sys.exit(main())
