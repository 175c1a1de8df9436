"""`python -m tests.bench.elastic`: from the loss of a node to the next step.

One run on four nodes, with this machine attached; each kind of loss once a round, each after all ranks train again. The
clock is the job's own: it prints when each step was done, and all nodes are on this machine.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.bench.measure import BenchError
from tests.bench.publish import ends_in_words, publish, say, table
from tests.support import elastic_run
from tests.support.chaos import disturb
from tests.support.elastic_run import Recovery, Training
from tests.support.harness import Project, brought_up, share_engine

NODES = 4
FEWEST_RUNS = 3
"""Fewer do not replace the results that are committed."""
JOB = "--epochs 100000 --pause 0.1"
KINDS = {
    "kill": "container killed (kill -9)",
    "pause": "node frozen (answers nothing)",
    "network": "node cut off from the network",
    "worker": "training process killed (kill -9)",
    "rank 0": "container of rank 0 killed",
}


def measure_elastic(engine: Any, folder: Path, *, runs: int) -> dict[str, list[Recovery]]:
    """Every kind of loss, this many times."""
    project = elastic_run.elastic_project(folder, f"t-bench-{secrets.token_hex(2)}", nodes=NODES, options=JOB)
    found: dict[str, list[Recovery]] = {kind: [] for kind in KINDS}
    with brought_up(project, engine), elastic_run.attached(project) as (screen, training):
        training.step_in_world_of(NODES)
        for turn in range(runs):
            for kind in KINDS:
                each = lose(engine, project, training, kind, index=1 + turn % (NODES - 1))
                say(f"round {turn + 1}/{runs}: {each}")
                found[kind].append(each)
        elastic_run.finish_soon(engine, project)
        screen.end()
        if screen.exit_code != 0:
            raise BenchError(f"the elastic run ended with {screen.exit_code}:\n{screen.text[-3000:]}")
        result = elastic_run.pulled_result(project)
    elastic_run.each_sample_once(result["history"], epochs=result["epochs"])
    return found


def lose(engine: Any, project: Project, training: Training, kind: str, *, index: int) -> Recovery:
    """Lose a node in one way; wait until the others train, undo it, wait until all do.

    Args:
        index: the node; one whose training process is killed again and again would be left out.
    """
    head, node, how = f"{project.name}-0", f"{project.name}-{index}", kind
    if kind == "rank 0":
        if training.steps()[-1].host == head:
            # The head is never replaced; another node gets rank 0 when the head's training process is lost.
            whole(training, elastic_run.recovery(training, disturb(engine, "worker", head)))
        node, how = training.steps()[-1].host, "kill"
        if node == head:
            raise BenchError(f"rank 0 stays on {head}")
    happened = disturb(engine, how, node)
    recovery = elastic_run.recovery(training, happened)
    happened.undo()
    return whole(training, recovery)


def whole(training: Training, recovery: Recovery) -> Recovery:
    """Wait until all ranks train."""
    step = training.step_in_world_of(NODES, since=recovery.went_on - 0.001)
    lost_at = recovery.went_on - recovery.lost
    return replace(recovery, whole=step.at - lost_at, pause=training.longest_pause(lost_at))


def markdown(found: Mapping[str, Sequence[Recovery]]) -> str:
    """As a table."""
    columns: Mapping[str, Callable[[Recovery], float]] = {
        "seconds to the next step": lambda each: each.lost,
        "longest pause until all ranks": lambda each: each.pause,
        "steps done again": lambda each: each.repeated,
        "seconds to all ranks": lambda each: each.whole or 0.0,
    }
    rows = [
        [KINDS[kind], *(shown([of(each) for each in samples]) for of in columns.values())]
        for kind, samples in found.items()
    ]
    return f"{table(['loss', *columns], rows)}\n\nMedian (least to most); {NODES} nodes on {os.cpu_count()} cores.\n"


def shown(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.elastic", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 3)")
    parser.add_argument("--results", type=Path, help="folder for elastic.json and elastic.md")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    from hvdcloud.engine import connect

    share_engine()
    load = os.getloadavg()[0]
    temporary = tempfile.TemporaryDirectory(prefix="hvd-bench-", ignore_cleanup_errors=True)
    with ends_in_words(), closing(connect()) as engine, temporary as folder:
        place = Path(folder)
        elastic_run.elastic_project(place / "image", "t-bench-image").hvdcloud("build", timeout=1200)
        found = measure_elastic(engine, place / "elastic", runs=options.runs)
    document = {
        "load": load,
        "cpus": os.cpu_count(),
        "losses": {k: [asdict(each) for each in v] for k, v in found.items()},
    }
    publish("elastic", document, markdown(found), folder=options.results, complete=options.runs >= FEWEST_RUNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
