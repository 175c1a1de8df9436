"""The templates with data really learn from the shards that they write: in one container with slots on localhost, and
as a launch of two nodes that mount them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

import hvdcloud
from tests.support.harness import labelled, project_in
from tests.support.jobs import LAUNCHER

pytestmark = pytest.mark.engine

TEMPLATES = Path(hvdcloud.__file__).parent / "templates"
FINAL = re.compile(r"final: accuracy (\d\.\d+), (.+), (\d+) ranks?")
IMAGES, TESTED = 1856, 192  # 29 shards, which neither 2 nor 3 ranks divide; 3 do not divide the images; and 3
# Runs train.py with a loader that prints what each rank sees: shard and place of every image, by its bytes.
WATCH = """
import hashlib, sys
sys.path.insert(0, "/workspace")
import train

def epoch(self, number, original=train.Loader.epoch):
    seen, steps = [], 0
    for images, labels in original(self, number):
        steps += 1
        seen += [hashlib.sha1(bytes(memoryview(image.contiguous().numpy()))).hexdigest()[:12] for image in images]
        yield images, labels
    print("saw", "train" if self.seed else "test", number, steps, *seen, flush=True)

train.Loader.epoch = epoch
train.main()
"""
# The same for arrays of numpy; the same ranks then continue for an epoch.
WATCH_NUMPY = (
    WATCH.replace("image.contiguous().numpy()", "image.copy()")
    + """
sys.argv += ["--epochs", "6"]
train.main()
"""
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o755)
    script = str(TEMPLATES / "make_data.py")
    subprocess.run([sys.executable, script, str(folder), "--shards", "29"], check=True, timeout=60)
    return folder


def container_of(image: str, template: str, data: Path) -> Iterator[Container]:
    """One of the image with the template as its workspace, the data where a run has them, one thread per rank."""
    client = docker.from_env()
    container = client.containers.run(
        image,
        entrypoint=["sleep", "infinity"],
        detach=True,
        init=True,
        working_dir="/workspace",
        environment={
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOROVOD_CYCLE_TIME": "5",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "HVDCLOUD_DATA": "/data",
        },
        labels={"hvdcloud-test": "template-data"},
        volumes={
            str(TEMPLATES / template): {"bind": "/workspace", "mode": "ro"},
            str(data): {"bind": "/data", "mode": "ro"},
        },
    )
    try:
        yield container
    finally:
        container.remove(force=True, v=True)
        client.close()


@pytest.fixture(scope="module")
def torch(image: str, data: Path) -> Iterator[Container]:
    yield from container_of(image, "torch-data", data)


@pytest.fixture(scope="module")
def keras(tensorflow_image: str, data: Path) -> Iterator[Container]:
    yield from container_of(tensorflow_image, "keras-data", data)


def execute(container: Container, script: str) -> str:
    """The output of a shell script that has to succeed."""
    result = container.exec_run(["bash", "-c", script])
    assert isinstance(result.output, bytes)
    text = result.output.decode(errors="replace")
    assert result.exit_code == 0, f"{script}\n{text}"
    return text


def train(container: Container, ranks: int, *arguments: str, folder: str, watch: str = "") -> str:
    script = "train.py"
    if watch:
        script = "/tmp/watch.py"
        execute(container, f"cat > {script} <<'END'\n{watch}\nEND")
    launcher = ["python", LAUNCHER, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    where = f"HVDCLOUD_CHECKPOINT_DIR=/tmp/{folder}"
    return execute(container, shlex.join(["env", where, *launcher, "python", script, *arguments]))


def seen(output: str, name: str, epoch: int) -> list[tuple[int, list[str]]]:
    """By each rank: how many steps it took, and which images."""
    lines = re.findall(rf"saw {name} {epoch} (\d+) ?(.*)$", output, flags=re.MULTILINE)
    return [(int(steps), images.split()) for steps, images in lines]


def every_image_once(output: str, ranks: int, epochs: range) -> None:
    whole = None
    for epoch in epochs:
        found = seen(output, "train", epoch)
        assert len(found) == ranks, output
        assert len({steps for steps, _ in found}) == 1, "a rank took more steps than another"
        images = sorted(image for _, share in found for image in share)
        assert len(images) == len(set(images)) == IMAGES
        assert whole in (None, images)
        whole = images
        counts = [len(share) for _, share in found]
        assert max(counts) - min(counts) <= 1


def test_every_image_is_seen_once_an_epoch_by_any_number_of_ranks_and_it_learns_and_continues(
    torch: Container,
) -> None:
    first = train(torch, 3, "--epochs", "5", "--batch-size", "16", "--lr", "0.03", folder="learns", watch=WATCH)
    assert f"training on {IMAGES} images, testing on {TESTED}, 3 ranks" in first
    every_image_once(first, 3, range(5))
    orders = [seen(first, "train", epoch)[0][1] for epoch in (0, 1)]
    assert orders[0] != orders[1]
    last = FINAL.search(first.strip().splitlines()[-1])
    assert last, first
    assert int(last[3]) == 3
    # With another number of ranks.
    again = train(torch, 2, "--epochs", "6", "--batch-size", "32", "--lr", "0.03", folder="learns", watch=WATCH)
    assert "resumed from checkpoint-005.pt: 5 epochs are done" in again
    assert f"training on {IMAGES} images, testing on {TESTED}, 2 ranks" in again
    every_image_once(again, 2, range(5, 6))
    last = FINAL.search(again.strip().splitlines()[-1])
    assert last, again
    assert float(last[1]) >= 0.9


def test_ranks_of_nodes_with_shards_of_their_own_share_them(torch: Container) -> None:
    """With `per_node: shard`: unequal sets on two nodes, each a rank here, and as many steps on both."""
    split = """
    for node in 0 1; do mkdir -p /tmp/node-$node/train /tmp/node-$node/test; cp /data/test/* /tmp/node-$node/test; done
    for file in /data/train/*; do
      node=$(( 10#$(basename $file .bin | cut -d- -f2) % 3 == 0 ? 0 : 1 )); cp $file /tmp/node-$node/train
    done
    """
    execute(torch, split)
    own = "import os\nos.environ['HVDCLOUD_DATA'] = '/tmp/node-' + os.environ['HOROVOD_RANK']\n"
    local = "import horovod.torch as hvd\nhvd.local_rank, hvd.local_size = lambda: 0, lambda: 1\n"
    output = train(torch, 2, "--epochs", "1", "--batch-size", "32", folder="shards", watch=own + local + WATCH)
    found = seen(output, "train", 0)
    assert sorted(len(images) for _, images in found) == [640, 1216]
    assert len({image for _, images in found for image in images}) == IMAGES
    assert {steps for steps, _ in found} == {1216 // 32}


def test_without_data_it_says_how_to_make_some(torch: Container) -> None:
    result = torch.exec_run(["env", "HVDCLOUD_DATA=/nowhere", "python", "train.py"])
    assert result.exit_code == 1
    assert b"/nowhere/train has no shards: python3 make_data.py writes some" in result.output


def test_keras_sees_every_image_once_learns_and_continues(keras: Container) -> None:
    output = train(keras, 2, "--epochs", "5", "--batch-size", "32", "--lr", "0.03", folder="keras", watch=WATCH_NUMPY)
    finals = FINAL.findall(output)
    assert len(finals) == output.count("weights are equal on 2 ranks") == 2, output
    assert float(finals[0][0]) >= 0.8, output
    # The dataset may have begun with the epoch after the last one.
    every_image_once(output, 2, range(2))
    assert "resumed from checkpoint-005.keras: 5 epochs are done" in output
    curves = execute(keras, "cd /tmp/keras/tensorboard && ls */events.out.tfevents.*").splitlines()
    assert sorted(curve.split("/")[0] for curve in curves) == ["train"] * 2 + ["validation"] * 2, "of rank 0 alone"


def test_two_nodes_train_on_a_folder_of_this_machine(tmp_path: Path, engine: Any, image: str) -> None:
    project = project_in(tmp_path, "t-template")
    for path in project.folder.iterdir():
        path.unlink()
    try:
        wrote = project.hvdcloud("init", "--template", "torch-data", "--name", project.name)
        assert wrote.out.endswith("\nnext: python3 make_data.py && hvdcloud launch\n")
        # What the image of these tests has.
        project.write("requirements.txt", "scikit-learn\n")
        subprocess.run([sys.executable, "make_data.py", "--shards", "16"], cwd=project.folder, check=True, timeout=60)
        ended = project.hvdcloud("launch", "python", "train.py", "--epochs", "1", "--batch-size", "32")
        assert "training on 1024 images, testing on 128, 2 ranks" in ended.out
        assert re.search(r"final: accuracy \d\.\d+, \d+ images/s, 2 ranks", ended.out), ended.out
        assert re.match(r"✓ t-template trained: accuracy \d", ended.out.splitlines()[-1]), ended.out
    finally:
        if left := labelled(engine, project.name):
            project.hvdcloud("down", "--force")
    assert left == []
