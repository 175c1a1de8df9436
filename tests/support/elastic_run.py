"""Following a run of e2e/elastic_job.py through all that happens to its nodes, and checking what came out."""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.chaos import Happened, run_in
from tests.support.harness import TEST_LABEL, Project, Screen, project_in, until

T = TypeVar("T")

JOB = Path(__file__).with_name("elastic_job.py")
SAMPLES = 1200
GLOO_TIMEOUT_SECONDS = 30
"""So long, and some seconds, a node that is ready waits after another one was lost or has joined."""
MOST_DIFFERENCE = 1e-7
"""Of any weight from that of an undisturbed training. Other worlds add the same doubles in another order, which was
measured to make 7e-14 after 1,200 steps and 2e-11 after 8,000; a sample that was left out made at least 1e-4."""
RUNS = "/var/lib/hvdcloud/runs"

_STEP = re.compile(r"step t=(\d+\.\d+) epoch (\d+) batch (\d+) world (\d+) rank 0 on (\S+)")
_WORLD = re.compile(r"world of (\d+) ranks: continuing at epoch (\d+), batch (\d+) t=(\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the training, or the first line after a change of ranks, as rank 0 printed it."""

    at: float
    """Seconds since 1970."""
    epoch: int
    batch: int
    world: int
    host: str = ""


class Training:
    """What a run's output shows of its training.

    Args:
        text: gives all of the output so far, which only grows.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self.text = text
        self._steps: list[Step] = []
        self._read = 0

    def steps(self) -> list[Step]:
        """Every step, in the order of the output."""
        # A test asks for them many times a second: each line is read once.
        text = self.text()
        end = text.rfind("\n") + 1
        self._steps += [
            Step(at=float(at), epoch=int(epoch), batch=int(batch), world=int(world), host=host)
            for at, epoch, batch, world, host in _STEP.findall(text, self._read, end)
        ]
        self._read = end
        return list(self._steps)

    def worlds(self) -> list[Step]:
        """Every time that the ranks found together."""
        return [
            Step(at=float(at), epoch=int(epoch), batch=int(batch), world=int(world))
            for world, epoch, batch, at in _WORLD.findall(self.text())
        ]

    def step_in_new_world(self, since: float, *, what: str = "") -> Step:
        """The first step after the ranks have found each other again.

        Args:
            since: seconds since 1970; worlds before it are not new.
        """

        def look() -> Step | None:
            new = next((world for world in self.worlds() if world.at > since), None)
            return next((step for step in self.steps() if new is not None and step.at > new.at), None)

        return self._until(look, what=f"a step in a new world {what}")

    def step_in_world_of(self, ranks: int, *, since: float = 0.0, what: str = "") -> Step:
        """The first step, after `since`, with this many ranks."""

        def look() -> Step | None:
            return next((step for step in self.steps() if step.at > since and step.world == ranks), None)

        return self._until(look, what=f"a step of {ranks} ranks {what}")

    def longest_pause(self, since: float) -> float:
        """The most seconds without a step since a moment: one loss may make the ranks wait twice."""
        times = [since, *(step.at for step in self.steps() if step.at > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def steps_go_on(self, *, count: int = 5) -> None:
        """Until there are this many more steps."""
        before = len(self.steps())
        self._until(lambda: len(self.steps()) >= before + count, what=f"{count} more steps")

    def step_after(self, at: float, *, what: str = "") -> Step:
        """The first step after a moment, with any number of ranks."""

        def look() -> Step | None:
            return next((step for step in self.steps() if step.at > at), None)

        return self._until(look, what=f"a step {what}")

    def _until(self, probe: Callable[[], T | None], *, what: str) -> T:
        try:
            return until(probe, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the output ends with\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        """The end of the output without the steps, to show why a wait failed."""
        kept = [line for line in self.text().splitlines() if not re.search(r"(step|commit) t=", line)]
        return "\n".join(kept[-lines:])


def elastic_project(root: Path, name: str, *, nodes: int = 4, least: int = 1, options: str = "") -> Project:
    """A project with the job as its train.py.

    Args:
        root: a folder.
        nodes: also the most that the run may grow to.
        least: nodes with which the run still continues.
        options: of the job.
    """
    project = project_in(root, name)
    project.write("train.py", JOB.read_text())
    configure(project, nodes=nodes, least=least, options=options)
    return project


def configure(project: Project, *, nodes: int, least: int, options: str) -> None:
    """Write the project's hvdcloud.yaml."""
    run = {
        "command": f"python train.py {options}".strip(),
        "elastic": {"min": least, "max": nodes},
        # Ranks ask each other this seldom, in ms, whether all are ready: it is most of what they do while they wait.
        "env": {
            "OMP_NUM_THREADS": "1",
            "HOROVOD_CYCLE_TIME": "30",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
        },
    }
    project.configure(nodes=nodes, run=run, checkpoints={"keep_every": 1})


@contextmanager
def attached(project: Project, *args: str) -> Iterator[tuple[Screen, Training]]:
    """`hvdcloud run`, followed, which replaces what is lost."""
    with project.started("run", *args) as process:
        screen = Screen(process)
        yield screen, Training(lambda: screen.text)


def head_file(engine: Any, project: Project, name: str) -> str:
    """What the head has of the newest run under a name: state.json, events.jsonl, log; empty if there is none."""
    code, output = run_in(engine, f"{project.name}-0", "sh", "-c", f"cat $(ls -d {RUNS}/*/ | tail -1){name}")
    return output if code == 0 else ""


def run_state(engine: Any, project: Project) -> dict[str, Any]:
    """The newest run's state.json."""
    # Not even a torn one: it is moved into place.
    state: dict[str, Any] = json.loads(head_file(engine, project, "state.json") or "{}")
    return state


def events(engine: Any, project: Project) -> list[dict[str, Any]]:
    """What the head wrote down of the newest run, oldest first."""
    return [json.loads(line) for line in head_file(engine, project, "events.jsonl").splitlines()]


def members(engine: Any, project: Project) -> dict[str, dict[str, Any]]:
    """The newest run's members by node; waits while a busy engine does not show the head's file."""
    state = until(lambda: run_state(engine, project), what="the state of the newest run")
    return {each["name"]: each for each in state.get("members") or ()}


def finish_soon(engine: Any, project: Project) -> None:
    """Let the job end with the epoch that has begun."""
    run_in(engine, f"{project.name}-0", "touch", "/tmp/enough")


def reference(engine: Any, image: str, *, epochs: int) -> dict[str, Any]:
    """What an undisturbed training of this many epochs comes to, on one rank."""
    container = engine.containers.run(
        image,
        ["/job.py", "--epochs", str(epochs)],
        entrypoint="python",
        volumes={str(JOB): {"bind": "/job.py", "mode": "ro"}},
        environment={"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "1"},
        labels=[TEST_LABEL],
        init=True,
        detach=True,
    )
    try:
        ended = container.wait(timeout=300)
        assert ended["StatusCode"] == 0, container.logs().decode(errors="replace")
        stream, _ = container.get_archive("/tmp/checkpoints/result.json")
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            content = archive.extractfile("result.json")
            assert content is not None
            found: dict[str, Any] = json.load(content)
    finally:
        container.remove(force=True)
    return found


def pulled_result(project: Project) -> dict[str, Any]:
    """result.json of the newest run, from the bucket."""
    run = project.hvdcloud("pull", "--json").json["result"]["runs"][-1]
    found: dict[str, Any] = json.loads(next(Path(run["folder"]).rglob("result.json")).read_text())
    return found


def each_sample_once(history: dict[str, Sequence[int]], *, epochs: int) -> None:
    """Every epoch has seen every sample, and none twice; fails with what is missing or too much."""
    assert sorted(history, key=int) == [str(epoch) for epoch in range(epochs)]
    for epoch, indices in history.items():
        missing = sorted(set(range(SAMPLES)) - set(indices))
        twice = sorted({index for index in indices if indices.count(index) > 1}) if len(indices) > SAMPLES else []
        assert len(indices) == SAMPLES, f"epoch {epoch}: {len(indices)} samples; missing {missing}, twice {twice}"
        assert not missing, f"epoch {epoch}: missing {missing}"


def same_result(result: dict[str, Any], undisturbed: dict[str, Any]) -> float:
    """Fails unless a training came to what an undisturbed one comes to. Returns the largest difference of a weight."""
    each_sample_once(result["history"], epochs=result["epochs"])
    assert (result["epochs"], result["steps"]) == (undisturbed["epochs"], undisturbed["steps"])
    difference: float = max(abs(a - b) for a, b in zip(result["weights"], undisturbed["weights"], strict=True))
    assert difference < MOST_DIFFERENCE, f"a weight is off by {difference}"
    assert abs(result["loss"] - undisturbed["loss"]) < MOST_DIFFERENCE
    assert result["accuracy"] == undisturbed["accuracy"]
    return difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a run got over a disturbance."""

    what: str
    lost: float
    """Seconds from the disturbance to the next step."""
    whole: float | None
    """Seconds from the disturbance to the next step of all ranks; None: not waited for."""
    went_on: float
    """When that was, in seconds since 1970."""
    pause: float = 0.0
    """The most seconds without a step until then, or until all ranks trained again."""
    repeated: int
    """Steps that were done again, because they had not been committed."""

    def __str__(self) -> str:
        back = (
            f", at most {self.pause:.1f} s without a step, all ranks again after {self.whole:.1f} s"
            if self.whole is not None
            else ""
        )
        return f"{self.what}: next step after {self.lost:.1f} s, {self.repeated} step(s) again{back}"


def recovery(training: Training, happened: Happened) -> Recovery:
    """Wait for the next step after a disturbance."""
    if happened.disturbance.loses_rank:
        step = training.step_in_new_world(happened.at, what=f"after {happened}")
    else:
        step = training.step_after(time.time(), what=f"after {happened}")
    before = [each for each in training.steps() if each.at < step.at]
    again = 0
    if before:
        last = max(before, key=lambda each: (each.epoch, each.batch))
        again = max(0, (last.epoch - step.epoch) * 20 + last.batch - step.batch + 1)
    return Recovery(
        what=str(happened),
        lost=step.at - happened.at,
        whole=None,
        went_on=step.at,
        pause=step.at - happened.at,
        repeated=again,
    )
