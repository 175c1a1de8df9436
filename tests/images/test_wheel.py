"""`make wheels`: a wheel of Horovod in an environment where nothing else of ours is. Takes as long as an image does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.image.build import buildkit
from hvdcloud.image.plan import base_images
from hvdcloud.image.plan.context import Context, Entry, Step, ca_entry, dockerfile_entries, locked, wheel_entries
from hvdcloud.image.plan.context import dockerfiles as dockerfiles_folder
from hvdcloud.image.plan.sources import find_sources, is_framework, local_wheels
from hvdcloud.image.plan.versions import PYTHON_VERSION, find
from tests.images.conftest import show
from tests.images.contents import inside
from tools.wheels import make_wheel, version_of

NAME = "hvdcloud-tests/wheel:clean"
ROW = find("torch", "cpu")
# Debian, its Python and Open MPI, and what pip makes of the wheel: no compiler, nothing of hvdcloud's.
CLEAN = r"""
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN --mount=type=cache,target=/mnt,id=hvdcloud-apt,sharing=private \
    apt-get update -q -o Acquire::Retries=3 \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dir::Cache::Archives=/mnt --no-install-recommends \
        openmpi-bin python3-venv
COPY ca-bundle.crt /opt/ca-bundle.crt
COPY dockerfiles/build/pip /usr/local/bin/pip
COPY wheels/ /opt/wheels/
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG FRAMEWORK_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip \
    python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/clean \
    && pip --python /opt/clean/bin/python install ${FRAMEWORK_INDEX_URL:+--extra-index-url "$FRAMEWORK_INDEX_URL"} \
        /opt/wheels/horovod-*.whl
COPY train.py /opt/train.py
"""
TRAIN = """
import horovod.torch as hvd, torch

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(200):
    samples = torch.randn(32, 4)
    loss = (model(samples) - samples @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
first, second = hvd.allgather(model.weight.detach())
assert torch.equal(first, second), f"the ranks' weights are {first} and {second}"
print(f"rank {hvd.rank()} of {hvd.size()}: {[round(value, 2) for value in first.tolist()]}")
"""
pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(ROW, tmp_path_factory.mktemp("wheels"), progress=show)


@pytest.fixture(scope="module")
def clean(engine: Any, wheel: Path) -> Iterator[str]:
    """An image with the wheel; nothing is left of it."""
    sources = find_sources(find_links=None, ca_bundle=None, project_dir=wheel.parent)
    wanted = {ROW.project, *(name for name, _ in locked(dockerfiles_folder() / "locks" / ROW.lock))}
    others = [each for each in local_wheels(sources, python=PYTHON_VERSION) if each.project in wanted]
    own = any(is_framework(each, ROW) for each in others)
    entries = (
        Entry(path="dockerfiles/clean.Dockerfile", content=CLEAN.encode()),
        Entry(path="train.py", content=TRAIN.encode()),
        Entry(path=f"wheels/{wheel.name}", source=wheel),
        *dockerfile_entries("build/pip"),
        *(ca_entry(sources), *wheel_entries(others)),
    )
    base = base_images.here(engine.api, base_images.pinned(base_images.DEBIAN))
    step = Step(
        reference=NAME,
        what="an environment with the wheel",
        context=Context(hashed=entries),
        dockerfile="dockerfiles/clean.Dockerfile",
        arguments={"BASE_IMAGE": base} | ({} if own else {"FRAMEWORK_INDEX_URL": ROW.index}),
    )
    buildkit.find(engine.api).build(step, progress=show)
    yield NAME
    engine.images.remove(NAME, force=True)


def test_two_ranks_train_with_it(engine: Any, clean: str) -> None:
    for controller in ("gloo", "mpi"):
        said = inside(
            engine, clean, "/opt/clean/bin/horovodrun", f"--{controller}", "-np", "2", "-H", "localhost:2",
            "--network-interface", "lo", "--disable-cache", "/opt/clean/bin/python", "/opt/train.py",
            environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        )  # fmt: skip
        assert "rank 0 of 2: [1.0, 2.0, 3.0, 4.0]" in said
        assert "rank 1 of 2: [1.0, 2.0, 3.0, 4.0]" in said


def test_it_says_what_it_is(engine: Any, clean: str, wheel: Path) -> None:
    code = "import importlib.metadata as m; print(m.version('horovod'), m.version('torch'))"
    assert inside(engine, clean, "/opt/clean/bin/python", "-c", code).split() == [version_of(ROW), "2.13.0+cpu"]
    source = {file.name for file in (wheel.parent / "source").iterdir()}
    patches = {f"horovod-{ROW.horovod}-{patch}.patch" for patch in ROW.patches}
    assert source == {f"horovod-{ROW.horovod}.tar.gz", *patches}
