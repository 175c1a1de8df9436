"""What tests of torchrun train: a script, clusters for it, and runs of it that go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.harness import Process, Project, Screen, brought_up, processes_in, project_in

# No word of hvdcloud but the folder for its checkpoints. DistributedDataParallel and an optimizer take each rank
# a second more to import.
TRAIN = """
import os, pathlib, signal, sys, time

import torch
import torch.distributed as dist

how, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
weights = torch.zeros(8)
folder = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
found = sorted(folder.glob("step-*.pt"))
first = 0
if found:
    saved = torch.load(found[-1], weights_only=True)
    weights, first = saved["weights"], saved["step"] + 1
if rank == 0:
    print(f"world of {world} ranks begins at step {first}", flush=True)
for step in range(first, steps):
    gradient = torch.ones(8) * (rank + 1)
    if how == "raise" and step == 3 and rank == 1:
        raise ValueError("my bug")
    if how == "stuck" and step == 3 and rank == 1:
        time.sleep(10000)
    dist.all_reduce(gradient)
    weights -= 0.01 * gradient
    if rank == 0 and step % (4 if pause else 1) == 0:
        name = folder / f"step-{step:05}.pt"
        torch.save({"weights": weights, "step": step}, name.with_suffix(".tmp"))
        name.with_suffix(".tmp").rename(name)
        for old in sorted(folder.glob("step-*.pt"))[:-2]:
            old.unlink()
        torch.save(weights, "plain.pt")
    print(f"rank {rank} step {step}", flush=True)
    time.sleep(pause)
print(f"rank {rank} of {world}, {os.environ['LOCAL_RANK']} of {os.environ['LOCAL_WORLD_SIZE']} here", flush=True)
dist.destroy_process_group()
"""


def line_of(words: str) -> str:
    """Where the script has these words: `train.py:12`."""
    return f"train.py:{TRAIN[: TRAIN.index(words)].count(chr(10)) + 1}"


@contextmanager
def cluster(root: Path, engine: Any, name: str, *, nodes: int = 2, **run: Any) -> Iterator[Project]:
    """A cluster for runs of torchrun, of which nothing is left afterwards."""
    project = project_in(
        root, name, nodes=nodes, run={"command": "python train.py run 5 0", "launcher": "torchrun", **run}
    )
    project.write("train.py", TRAIN)
    with brought_up(project, engine):
        yield project


def job(how: str = "run", *, steps: int = 5, pause: float = 0.0) -> tuple[str, ...]:
    return ("--", "python", "train.py", how, str(steps), str(pause))


def nothing_runs(engine: Any, project: Project, *, nodes: int = 2) -> None:
    for index in range(nodes):
        assert [*processes_in(engine, f"{project.name}-{index}", ["train.py"])] == []
        assert [*processes_in(engine, f"{project.name}-{index}", ["torchrun"])] == []


@contextmanager
def started(project: Project, *, rank: int = 1) -> Iterator[tuple[Screen, Process]]:
    """A run that trains on and on, attached, and its process; `rank` has trained a step when the block begins."""
    with project.started("run", "--fresh", *job(steps=100000, pause=0.25)) as process:
        screen = Screen(process)
        screen.wait_for(f"rank {rank} step 3\n")
        yield screen, process


@contextmanager
def training(project: Project, *, rank: int = 1) -> Iterator[Screen]:
    """The same, without its process."""
    with started(project, rank=rank) as (screen, _):
        yield screen
