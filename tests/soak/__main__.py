"""`python -m tests.soak`: random disturbances of one elastic run, one after the other.

SOAK_SEED (default: random) and SOAK_COUNT (default: 20) are read from the environment; the same seed does the same to
the same nodes. At the end the result has to be that of an undisturbed training, every sample has to have been seen
exactly once in each epoch, every checkpoint has to be in the bucket, and nothing may be left.
"""

from __future__ import annotations

import collections
import os
import random
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdcloud.node.elastic.membership import MOST_FAILURES
from tests.bench.publish import say
from tests.support import elastic_run
from tests.support.chaos import Happened, disturb, possible
from tests.support.elastic_run import Recovery, Training
from tests.support.harness import Project, Screen, labelled, share_engine

NODES = 4
BETWEEN = (1.0, 8.0)
"""Seconds from one disturbance's end to the next, at random: some come while a node is still joining."""
OUTAGE = (2.0, 30.0)
"""Seconds until what can be undone is undone."""
OPTIONS = "--epochs 100000 --pause 0.1"
TWO_AT_ONCE = 0.2
"""How often two nodes are disturbed at the same time."""
LEAVE_TO_THEM = 0.5
"""How often a loss that could be undone is left to a replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One round."""

    what: Sequence[tuple[str, int]]
    """Names of disturbances and numbers of nodes."""
    pause: float
    outage: float
    undone: bool
    """False: the attached client has to replace the node."""
    wait_whole: bool
    """Whether all ranks train again before the next round."""


def plans(seed: int, count: int, *, names: Sequence[str]) -> list[Plan]:
    """What will happen. Pure.

    Args:
        seed: of the random choice.
        count: of rounds.
        names: of the disturbances to choose from.

    The head is never taken away, since a run that loses it is lost; what runs on it may be killed. A node's training
    process is killed less often than makes the node be left out.
    """
    chance = random.Random(seed)
    found: list[Plan] = []
    for number in range(count):
        killed = collections.Counter(node for plan in found for name, node in plan.what if name == "worker")
        tired = {node for node, times in killed.items() if times == MOST_FAILURES - 1}
        nodes = chance.sample(range(1, NODES), 2 if chance.random() < TWO_AT_ONCE else 1)
        what = [
            (chance.choice([name for name in names if name != "worker" or node not in tired]), node) for node in nodes
        ]
        if chance.random() < 0.1 and 0 not in tired:
            what = [("worker", 0)]
        found.append(
            Plan(
                what=what,
                pause=chance.uniform(*BETWEEN),
                outage=chance.uniform(*OUTAGE),
                undone=chance.random() > LEAVE_TO_THEM,
                # Every third is followed by the next while its node is still away or joining.
                wait_whole=number % 3 != 1 or number == count - 1,
            )
        )
    return found


def main() -> int:
    """Returns 0 if nothing was lost and nothing is left."""
    seed = int(os.environ.get("SOAK_SEED") or secrets.randbelow(1 << 31))
    count = int(os.environ.get("SOAK_COUNT") or 20)
    say(f"soak: {count} disturbances, SOAK_SEED={seed}")
    from hvdcloud.engine import connect

    share_engine()
    engine = connect()
    name = f"t-soak-{secrets.token_hex(2)}"
    with tempfile.TemporaryDirectory(prefix="hvd-soak-", ignore_cleanup_errors=True) as folder:
        project = elastic_run.elastic_project(Path(folder), name, nodes=NODES, options=OPTIONS)
        try:
            project.hvdcloud("build", timeout=1200)
            project.hvdcloud("up")
            soak(engine, project, plans(seed, count, names=possible(engine)))
            return 0
        except Exception:  # Whatever it was, the evidence is kept and the cluster deleted.
            traceback.print_exc()
            keep_evidence(engine, project)
            say(f"soak: FAILED; again: make soak SOAK_SEED={seed} SOAK_COUNT={count}")
            return 1
        finally:
            project.hvdcloud("down", "--force")
            left = labelled(engine, name)
            say(f"soak: left behind: {', '.join(left) or 'nothing'}")
            engine.close()
            assert not left


def soak(engine: Any, project: Project, rounds: Sequence[Plan]) -> None:
    """All rounds, then the end.

    Raises AssertionError: the run did not continue, something was lost, or the result is another one.
    """
    with elastic_run.attached(project) as (screen, training):
        training.step_in_world_of(NODES)
        recoveries: list[Recovery] = []
        away: list[Happened] = []
        for number, each in enumerate(rounds, 1):
            time.sleep(each.pause)
            recoveries.append(one_round(engine, project, screen, training, each, away))
            say(f"{number:3}/{len(rounds)}  {recoveries[-1]}")
        elastic_run.finish_soon(engine, project)
        screen.end()
        assert screen.exit_code == 0, screen.text[-4000:]
    state = elastic_run.run_state(engine, project)
    assert (state["result"], state["checkpoints"]["complete"]) == ("succeeded", True), state
    result = elastic_run.pulled_result(project)
    image = engine.containers.get(f"{project.name}-0").image.id
    difference = elastic_run.same_result(result, elastic_run.reference(engine, image, epochs=result["epochs"]))
    say(
        f"\n{result['epochs']} epochs, {result['steps']} steps: every sample once per epoch; largest difference of a "
        f"weight from an undisturbed training {difference:.1e}\n"
        f"{len(training.worlds())} worlds, Horovod started again {state['restarts']} time(s), "
        f"{sum(each.repeated for each in recoveries)} step(s) done again"
    )


def one_round(
    engine: Any, project: Project, screen: Screen, training: Training, plan: Plan, away: list[Happened]
) -> Recovery:
    """Disturb, see that the others continue, undo.

    Args:
        away: what was done and not yet undone, of this round and of earlier ones; changed.
    """
    assert screen.exit_code is None, screen.text[-4000:]
    happened = []
    for name, index in plan.what:
        if (done := try_to_disturb(engine, name, f"{project.name}-{index}")) is not None:
            happened.append(done)
    if not happened:
        what = f"{', '.join(f'{name} of node {index}' for name, index in plan.what)}: was away already"
        return Recovery(what=what, lost=0.0, whole=None, went_on=0.0, repeated=0)
    away += happened
    losing = [each for each in happened if each.disturbance.loses_rank]
    last = (losing or happened)[-1]
    found = elastic_run.recovery(training, last)
    until_undone = last.at + plan.outage - time.time()
    if until_undone > 0:
        time.sleep(until_undone)
    undo(engine, away, all_of_them=plan.undone)
    whole = None
    if plan.wait_whole:
        undo(engine, away, all_of_them=False)
        step = training.step_in_world_of(NODES, since=found.went_on - 0.001, what=f"after {last}")
        whole = step.at - last.at
    return replace(found, what=" and ".join(map(str, happened)), whole=whole, pause=training.longest_pause(last.at))


def try_to_disturb(engine: Any, name: str, node: str) -> Happened | None:
    """None where it cannot be done now: the node is away, being replaced, or what is to be killed does not run yet."""
    from docker.errors import APIError

    try:
        if engine.containers.get(node).status != "running":
            return None
        return disturb(engine, name, node)
    except (APIError, AssertionError):
        return None


MENDED_BY_NOBODY = ("pause", "network", "disconnect", "disk")
"""A node that is frozen or cut off may come back with all that it holds, so it is not replaced."""


def undo(engine: Any, away: list[Happened], *, all_of_them: bool) -> None:
    """Undo what is to be undone by hand, or everything."""
    for each in list(away):
        if all_of_them or each.disturbance.name in MENDED_BY_NOBODY:
            each.undo()
            away.remove(each)


def keep_evidence(engine: Any, project: Project) -> None:
    """What the head says, to explain a failure."""
    folder = Path(tempfile.mkdtemp(prefix="hvd-soak-evidence-"))
    for file in ("state.json", "events.jsonl", "log", "supervisor.err"):
        try:
            (folder / file).write_text(elastic_run.head_file(engine, project, file))
        except Exception as error:  # The failure itself is what counts.
            say(f"soak: {file} could not be read: {error}")
    say(f"soak: the run's state, events and log are in {folder}")


if __name__ == "__main__":
    sys.exit(main())
