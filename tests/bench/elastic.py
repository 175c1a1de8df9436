"""`python -m tests.bench.elastic`: from the loss of a node to the next step, elastic against starting again.

Elastic: one run on four nodes, with this machine attached; each kind of loss once a round, each after all ranks train
again. Static: what a person types when the same training without `run.elastic` has lost a node, once a round:
`hvdcloud down --force && hvdcloud up && hvdcloud run`, and the shorter `hvdcloud resize 4 && hvdcloud run`; both resume
from the newest checkpoint as far as they have one. The clock is the job's own: it prints when each step was done, and
all nodes are on this machine.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.measure import BenchError
from tests.bench.publish import ends_in_words, publish, say
from tests.support import elastic_run
from tests.support.chaos import disturb
from tests.support.elastic_run import Recovery, Training
from tests.support.harness import Project, Screen, labelled, share_engine, until

NODES = 4
FEWEST_RUNS = 3
"""Fewer do not replace the results that are committed."""
LIMIT_SECONDS = 180
JOB = "--epochs 100000 --pause 0.1"
GLOO_SECONDS = 10
"""HOROVOD_GLOO_TIMEOUT_SECONDS of the static runs: with Horovod's own 30 s they would notice a loss later."""
KINDS = {
    "kill": "container killed (kill -9)",
    "pause": "node frozen (answers nothing)",
    "network": "node cut off from the network",
    "worker": "training process killed (kill -9)",
    "rank 0": "container of rank 0 killed",
}
STATIC = {
    "down, up, run": "static: down --force, up, run",
    "resize, run": "static: resize 4, run",
}


@contextmanager
def cluster(project: Project, engine: Any) -> Iterator[None]:
    """Nothing of it is left afterwards."""
    try:
        project.hvdcloud("up")
        yield
    finally:
        project.hvdcloud("down", "--force")
        if left := labelled(engine, project.name):
            raise BenchError(f"left behind: {', '.join(left)}")


def measure_elastic(engine: Any, folder: Path, *, runs: int) -> dict[str, list[Recovery]]:
    """Every kind of loss, this many times."""
    project = elastic_run.elastic_project(folder, f"t-bench-{secrets.token_hex(2)}", nodes=NODES, options=JOB)
    found: dict[str, list[Recovery]] = {kind: [] for kind in KINDS}
    with cluster(project, engine), elastic_run.attached(project) as (screen, training):
        training.step_in_world_of(NODES, seconds=LIMIT_SECONDS)
        for turn in range(runs):
            for kind in KINDS:
                each = lose(engine, project, training, kind, index=1 + turn % (NODES - 1))
                say(f"round {turn + 1}/{runs}: {each}")
                found[kind].append(each)
        elastic_run.finish_soon(engine, project)
        screen.end(within=LIMIT_SECONDS)
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
            whole(training, elastic_run.recovery(training, disturb(engine, "worker", head), seconds=LIMIT_SECONDS))
        node, how = training.steps()[-1].host, "kill"
        if node == head:
            raise BenchError(f"rank 0 stays on {head}")
    happened = disturb(engine, how, node)
    recovery = elastic_run.recovery(training, happened, seconds=LIMIT_SECONDS)
    happened.undo()
    return whole(training, recovery)


def whole(training: Training, recovery: Recovery) -> Recovery:
    """Wait until all ranks train."""
    step = training.step_in_world_of(NODES, since=recovery.went_on - 0.001, seconds=LIMIT_SECONDS)
    lost_at = recovery.went_on - recovery.lost
    return replace(recovery, whole=step.at - lost_at, pause=training.longest_pause(lost_at))


def measure_static(engine: Any, folder: Path, *, how: str) -> float:
    """Seconds from the loss of a node of a static run to the first step of the run after it."""
    project = elastic_run.elastic_project(folder, f"t-bench-{secrets.token_hex(2)}", nodes=NODES, options=JOB)
    run = {
        "command": f"python train.py {JOB}",
        "env": {"OMP_NUM_THREADS": "1", "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_SECONDS)},
    }
    project.configure(nodes=NODES, run=run, checkpoints={"keep_every": 1})
    with cluster(project, engine):
        with project.started("run") as process:
            screen = Screen(process)
            until(lambda: "epoch t=" in screen.text, seconds=LIMIT_SECONDS, what="the first epoch's end")
            happened = disturb(engine, "kill", f"{project.name}-2")
            screen.end(within=LIMIT_SECONDS)
        if how == "resize, run":
            project.hvdcloud("resize", str(NODES), "--force")
        else:
            project.hvdcloud("down", "--force")
            project.hvdcloud("up")
        with elastic_run.attached(project) as (screen, training):
            step = training.step_after(happened.at, seconds=LIMIT_SECONDS)
            project.hvdcloud("stop")
            screen.end(within=LIMIT_SECONDS)
    return step.at - happened.at


def document(found: dict[str, list[Recovery]], static: dict[str, list[float]], *, load: float) -> dict[str, Any]:
    """What was measured, in seconds."""
    return {
        "nodes": NODES,
        "cores": os.cpu_count(),
        "load_before": load,
        "gloo_timeout_seconds": GLOO_SECONDS,
        "elastic_gloo_timeout_seconds": elastic_run.GLOO_TIMEOUT_SECONDS,
        "elastic": {
            kind: {
                "to_next_step": [each.lost for each in samples],
                "to_all_ranks": [each.whole for each in samples],
                "longest_pause": [each.pause for each in samples],
                "steps_again": [each.repeated for each in samples],
            }
            for kind, samples in found.items()
        },
        "static": static,
    }


def markdown(result: dict[str, Any]) -> str:
    """As tables."""
    ways = [seconds for seconds in result["static"].values() if seconds]
    # The faster of the two ways to start again.
    again_takes = min(map(statistics.median, ways), default=None)
    lines = [
        "| loss | seconds to the next step | longest pause until all ranks | steps done again | seconds to all ranks "
        "| starting again takes |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, samples in result["elastic"].items():
        seconds = samples["to_next_step"]
        if not seconds:
            continue
        ratio = f"{again_takes / statistics.median(seconds):.1f} x" if again_takes is not None else "-"
        again = f"{statistics.median(samples['steps_again']):.0f}"
        cells = [shown(seconds), shown(samples["longest_pause"]), again, shown(samples["to_all_ranks"]), ratio]
        lines.append(f"| {' | '.join([KINDS[kind], *cells])} |")
    for how, seconds in result["static"].items():
        if seconds:
            lines.append(f"| {STATIC[how]} | {shown(seconds)} | | | | |")
    lines.append(
        f"\nMedian (least to most); {result['nodes']} nodes on {result['cores']} cores; "
        f"Gloo's timeout is {result['gloo_timeout_seconds']} s in static runs, "
        f"{result['elastic_gloo_timeout_seconds']} s in elastic ones. What starting again takes is the faster way's; "
        "it ends with all ranks, the next step of an elastic run is that of the others."
    )
    return "\n".join(lines) + "\n"


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
        static: dict[str, list[float]] = {how: [] for how in STATIC}
        for turn in range(options.runs):
            for how in STATIC:
                seconds = measure_static(engine, place / f"{how.partition(',')[0]}-{turn}", how=how)
                say(f"round {turn + 1}/{options.runs}: {STATIC[how]}: {seconds:.1f} s")
                static[how].append(seconds)
    result = document(found, static, load=load)
    publish("elastic", result, markdown(result), folder=options.results, complete=options.runs >= FEWEST_RUNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
