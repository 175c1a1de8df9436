"""A deadlock of real Horovod ranks: the run ends, says where each rank is and for which tensor it waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.harness import Project, brought_up, project_in

pytestmark = pytest.mark.engine

# Rank 1 waits for a batch that never comes; rank 0 for rank 1's gradient.
DEADLOCK = """
import queue

import horovod.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
batches = queue.Queue()
for _ in range(3 - hvd.rank()):
    batches.put(torch.ones(2, 4))


def train():
    for step in range(3):
        optimizer.zero_grad()
        model(batches.get()).sum().backward()
        optimizer.step()
        print("step", step, flush=True)


train()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(tmp_path_factory.mktemp("stuck"), "t-stuck", limits={"stuck": "30s"})
    project.write("train.py", DEADLOCK)
    with brought_up(project, engine):
        yield project


@pytest.mark.parametrize("controller", ["gloo", pytest.param("mpi", marks=pytest.mark.nightly)])
def test_a_deadlock_ends_the_run_with_the_stacks_of_all_ranks(project: Project, controller: str) -> None:
    document = project.hvdcloud("run", "--controller", controller, "--json", expect=7).json
    stuck = {tuple(group["ranks"]): group for group in document["result"]["stuck"]["groups"]}
    assert (stuck[1,]["where"], stuck[1,]["place"]) == ("Queue.get", "train.py:20")
    assert stuck[0,]["place"] == "train.py:21" or stuck[0,]["place"] == "train.py:22"
    assert any("weight" in name or "bias" in name for name in stuck[0,]["waits_for"])
    assert "rank 1 is in Queue.get (train.py:20)" in document["error"]["message"]

    assert "rank 1 is in Queue.get (train.py:20)" in project.hvdcloud("stacks").out
