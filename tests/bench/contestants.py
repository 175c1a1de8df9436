"""Who is measured with the all-reduce job on two nodes, and what each says about where its time goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.measure import BenchError, Sample, output, run
from tests.bench.workplace import HERE, HVDCLOUD, JOB, TORCHX_BIN, Project, Workplace

ANSWER = "2 ranks summed"
ANSWER_ALONE = "1 ranks summed"
CHECKPOINT_BYTES = 100_000

PHASES: Mapping[str, str] = {
    "the command starts, checks the image": "creating",
    "network, containers, sshd answers": "nodes",
    "SSH, mesh keys, code sent, run launched": "launched",
    "horovodrun, until rank 0's program starts": "program",
    "the program: torch and Horovod imported": "loaded",
    "the program: `hvd.init`": "joined",
    "the program: all-reduce (and checkpoint)": "reduced",
    "ranks and horovodrun end, bucket complete": "ended",
    "checkpoint pulled and verified": "pulled",
    "removal, the command ends": "end",
}
"""What the time is divided into, in order, and the event that ends each part. An event that a contestant does not have
happens together with the one before."""

# The lines by which hvdcloud's progress shows where it is; of those that match, the first or the last one counts.
_LINES = {
    "creating": (re.compile(r"^\S+-\d+: creating$"), 0),
    "nodes": (re.compile(r"^\S+-\d+: ready$"), -1),
    "launched": (re.compile(r"^run \S+: \d+ rank"), 0),
    "ended": (re.compile(r"^pull \S+: fetching$"), 0),
    "pulled": (re.compile(r"^pull \S+: done$"), -1),
}
# Which of the scripts' own marks stand for the same events.
_MARKS = {"nodes": "horovodrun", "launched": "horovodrun", "ended": "removing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to run the job."""

    key: str
    title: str
    argv: Sequence[str | Path]
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    answer: str = ANSWER
    """What the job has to print."""
    check: Callable[[], None] = lambda: None
    """What must be true afterwards."""

    def measure(self) -> Sample:
        """Run the job once.

        Raises:
            BenchError: it failed, or did not do what it should.
        """
        sample = run(self.argv, cwd=self.cwd, env=self.env)
        if self.answer not in sample.text:
            raise BenchError(f"{self.title}: the job did not say `{self.answer} …`:\n{sample.text}")
        self.check()
        return sample


def phases(sample: Sample) -> dict[str, float]:
    """Seconds for every phase; 0.0 for one that the contestant does not have."""
    at = {"end": sample.seconds, **sample.marks}
    at.update({event: sample.marks[mark] for event, mark in _MARKS.items() if mark in sample.marks})
    for name, (line, which) in _LINES.items():
        if found := [moment for moment, text in sample.lines if line.search(text)]:
            at[name] = found[which]
    result = {}
    last = 0.0
    for phase, until in PHASES.items():
        moment = max(last, at.get(until, last))
        result[phase] = moment - last
        last = moment
    return result


def floor(place: Workplace, image: str) -> Contestant:
    """(a) Shell and `docker`, nothing else."""
    return Contestant(
        key="floor",
        title="by hand: shell and docker",
        argv=["bash", HERE / "floor.sh", image, place.token],
        env={"TMPDIR": str(place.folder)},
    )


def bare(place: Workplace, image: str) -> Contestant:
    """The job's program in one container, as one rank: no other node, no network, no horovodrun, nothing kept."""
    container = ["docker", "run", "--rm", "--label", f"hvdcloud-bench={place.token}", "--shm-size", "1g"]
    return Contestant(
        key="bare",
        title="`docker run` of the job, one rank",
        argv=[*container, "--volume", f"{JOB}:/job:ro", "--entrypoint", "python", image, "/job/allreduce.py"],
        answer=ANSWER_ALONE,
    )


def torchx(place: Workplace, image: str, *, how: str) -> Contestant:
    """(b) TorchX.

    Args:
        image: the id of one without an entrypoint.
        how: `cli` or `api`.
    """
    title = {"cli": "TorchX: `torchx run`", "api": "TorchX: its Python API"}[how]
    return Contestant(
        key=f"torchx-{how}",
        title=title,
        argv=["bash", HERE / "torchx.sh", image, TORCHX_BIN, how],
        cwd=place.folder,
        env={"TMPDIR": str(place.folder)},
    )


def steps(place: Workplace, project: Project) -> Contestant:
    """(c) One command after the other."""
    commands = " && ".join(f'"$0" {command}' for command in ("up", "run", "pull", "down"))
    return Contestant(
        key="steps",
        title="`hvdcloud up`, `run`, `pull`, `down`",
        argv=["sh", "-c", commands, HVDCLOUD],
        cwd=project.folder,
        env=place.env,
        check=_Whole(project),
    )


def launch(place: Workplace, project: Project) -> Contestant:
    """(d) All in one."""
    return Contestant(
        key="launch",
        title="`hvdcloud launch`",
        argv=[HVDCLOUD, "launch"],
        cwd=project.folder,
        env=place.env,
        check=_Whole(project),
    )


@dataclass(slots=True)
class _Whole:
    """Every run leaves one more checkpoint on this disk, and nothing on the engine."""

    project: Project
    seen: int = 0

    def __post_init__(self) -> None:
        self.seen = len(self._found())

    def _found(self) -> list[Path]:
        files = (self.project.folder / "checkpoints").glob("*/numbers.pt")
        return [file for file in files if file.stat().st_size >= CHECKPOINT_BYTES]

    def __call__(self) -> None:
        found = len(self._found())
        if found <= self.seen:
            raise BenchError(f"{self.project.name}: the run left no checkpoint on this disk")
        self.seen = found
        for kind in (["ps", "--all"], ["network", "ls"], ["volume", "ls"]):
            left = output("docker", *kind, "--quiet", "--filter", f"label=hvdcloud-cluster={self.project.name}")
            if left:
                raise BenchError(f"{self.project.name}: `docker {kind[0]}` still shows {left}")
