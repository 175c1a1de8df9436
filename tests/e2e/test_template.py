"""The templates for torch really learn, with the image's torch and Horovod, in one container with slots on localhost.

Here `torch-elastic` keeps its ranks: that it also gives the results of `torch`, with any number of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

import hvdcloud
from tests.support.jobs import LAUNCHER

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

TEMPLATES = Path(hvdcloud.__file__).parent / "templates"
FINAL = re.compile(r"final: accuracy (\d\.\d+), (.+), (\d+) ranks?")
# Runs train.py with an evaluation that first compares the weights of all ranks; then with large batches, where one of
# 1,437 images is left after a step of 2 * 718; then from what the first run had after its sixth epoch.
TRAININGS = """
import hashlib, os, shutil, sys
sys.path.insert(0, "/workspace")
import horovod.torch as hvd, train

def evaluate(model, tests, original=train.evaluate):
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    digests = hvd.allgather_object(digest)
    if hvd.rank() == 0:
        print("weights are", "equal" if len(set(digests)) == 1 else "different", "on", len(digests), flush=True)
    return original(model, tests)

train.evaluate = evaluate
train.main()
os.environ["HVDCLOUD_CHECKPOINT_DIR"] = "/tmp/one-left"
sys.argv += ["--batch-size", "718", "--epochs", "2"]
train.main()
os.environ["HVDCLOUD_CHECKPOINT_DIR"] = "/tmp/killed"
del sys.argv[1:]
if hvd.rank() == 0:
    os.mkdir("/tmp/killed")
    for epoch in range(1, 7):
        shutil.copy(f"/tmp/two/checkpoint-{epoch:03d}.pt", "/tmp/killed")
train.main()
"""
# Waits until the checkpoint after that exists, then kills every rank at once, as a lost node would.
KILL_AFTER_EPOCH_7 = """
{command} & launcher=$!
while kill -0 $launcher 2>/dev/null && [ ! -e /tmp/killed/checkpoint-007.pt ]; do sleep 0.1; done
kill -9 $launcher $(grep -lz ^HOROVOD_RANK= /proc/[0-9]*/environ | cut -d/ -f3)
wait
"""
COMPARE_CHECKPOINTS = """
import sys, torch
a, b = (torch.load(path, weights_only=True) for path in sys.argv[1:])
assert a["epoch"] == b["epoch"], (a["epoch"], b["epoch"])
for name, weights in a["model"].items():
    torch.testing.assert_close(b["model"][name], weights, rtol=0, atol=0)
print("the same")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a training printed."""

    output: str

    @property
    def final(self) -> tuple[float, str, int]:
        """Accuracy, speed in words, number of ranks: the last line."""
        found = FINAL.search(self.output.strip().splitlines()[-1])
        assert found, self.output
        return float(found[1]), found[2], int(found[3])

    @property
    def epochs(self) -> list[int]:
        return [int(number) for number in re.findall(r"epoch +(\d+)/\d+: loss", self.output)]


@pytest.fixture(scope="module", params=["torch", "torch-elastic"])
def container(request: pytest.FixtureRequest, image: str) -> Iterator[Container]:
    """A container of the image with the template as its workspace, one thread per rank."""
    client = docker.from_env()
    container = client.containers.run(
        image,
        entrypoint=["sleep", "infinity"],
        detach=True,
        init=True,
        working_dir="/workspace",
        # Ranks that ask each other every millisecond, the default, would take two cores from each other.
        environment={"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOROVOD_CYCLE_TIME": "5"},
        volumes={str(TEMPLATES / request.param): {"bind": "/workspace", "mode": "ro"}},
    )
    try:
        yield container
    finally:
        container.remove(force=True, v=True)
        client.close()


def execute(container: Container, script: str) -> str:
    """The output of a shell script that has to succeed."""
    result = container.exec_run(["bash", "-c", script])
    assert isinstance(result.output, bytes)
    text = result.output.decode(errors="replace")
    assert result.exit_code == 0, f"{script}\n{text}"
    return text


def train(container: Container, folder: str, *arguments: str, ranks: int | None, script: str = "train.py") -> Training:
    """One training with checkpoints in `folder`; without `ranks`, without Horovod's launcher."""
    return Training(output=execute(container, command(folder, *arguments, ranks=ranks, script=script)))


def command(folder: str, *arguments: str, ranks: int | None, script: str = "train.py") -> str:
    launcher = ["python", LAUNCHER, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"] if ranks else []
    return shlex.join(["env", f"HVDCLOUD_CHECKPOINT_DIR={folder}", *launcher, "python", script, *arguments])


def write(container: Container, path: str, text: str) -> None:
    execute(container, f"cat > {path} <<'END'\n{text}\nEND")


@pytest.fixture(scope="module")
def trainings(container: Container) -> tuple[Training, Training]:
    """Those of two ranks: an uninterrupted one that compares weights after each epoch, and one with large batches.

    A third one was killed.
    """
    write(container, "/tmp/trainings.py", TRAININGS)
    script = command("/tmp/two", ranks=2, script="/tmp/trainings.py")
    outputs = execute(container, KILL_AFTER_EPOCH_7.format(command=script)).split(" ranks\n")
    return Training(output=outputs[0] + " ranks"), Training(output=outputs[1] + " ranks")


@pytest.fixture
def two_ranks(trainings: tuple[Training, Training]) -> Training:
    return trainings[0]


def test_two_ranks_learn(two_ranks: Training) -> None:
    accuracy, _, ranks = two_ranks.final
    assert ranks == 2
    assert accuracy >= 0.96


def test_all_ranks_have_the_same_weights_after_every_epoch(two_ranks: Training) -> None:
    assert two_ranks.output.count("weights are equal on 2") >= 12, two_ranks.output


def test_a_training_that_was_killed_and_resumed_ends_with_the_same_weights(
    container: Container, trainings: tuple[Training, Training]
) -> None:
    folder = "/tmp/killed"
    resumed = train(container, folder, ranks=2)
    assert "resumed from checkpoint-" in resumed.output
    assert 0 < len(resumed.epochs) < 6, resumed.output
    assert resumed.epochs[-1] == 12
    write(container, "/tmp/compare_checkpoints.py", COMPARE_CHECKPOINTS)
    last = "checkpoint-012.pt"
    execute(container, f"python /tmp/compare_checkpoints.py /tmp/two/{last} {folder}/{last}")
