"""torchrun and each: whole lives, nodes that are lost, elastic runs. Horovod: test_launch, test_lost_nodes, …"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos import disturb
from tests.support.harness import brought_up, labelled, processes_in, project_in, until
from tests.support.project_runs import in_bucket, last_run, pulled
from tests.support.torchrun_job import cluster, nothing_runs, training

pytestmark = pytest.mark.engine

EACH = """
import os, socket, time
from pathlib import Path

rank, nodes = int(os.environ["HVDCLOUD_NODE_RANK"]), int(os.environ["HVDCLOUD_NODES"])
address = os.environ["HVDCLOUD_HEAD"], int(os.environ["MASTER_PORT"])
assert address[0] == os.environ["MASTER_ADDR"]
lines = Path(os.environ["HVDCLOUD_HOSTFILE"]).read_text().splitlines()
if rank == 0:
    with socket.create_server(address) as server:
        said = sorted(server.accept()[0].makefile().readline() for _ in range(1, nodes))
    print("heard", *said, "hostfile", *lines)
else:
    for _ in range(600):
        try:
            connection = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    connection.sendall(f"node {rank}".encode())
"""


# --- from a script to its checkpoints --------------------------------------------------------------------------------


# As a person writes it who has never heard of hvdcloud.
PLAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    loss = model(torch.ones(8, 10)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "./model-1.pt")
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def test_a_plain_ddp_script_is_found_to_be_torchruns_and_its_model_comes_home(
    tmp_path: Path, engine: Any, torchrun_image: str
) -> None:
    project = project_in(tmp_path, "t-plain-ddp")
    (project.folder / "hvdcloud.yaml").unlink()
    project.write("my_train.py", PLAIN)
    begun = project.hvdcloud("init", "--script", "my_train.py", "--name", project.name)
    assert "run.launcher is torchrun: my_train.py:3 imports torch.distributed" in begun.out + begun.err
    ended = project.hvdcloud("launch")
    assert sorted(line for line in ended.out.splitlines() if "rank" in line) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    assert labelled(engine, project.name) == []
    assert [path.parent.name for path in (project.folder / "checkpoints").rglob("model-1.pt")] == ["workspace"]


@pytest.mark.nightly
def test_the_ddp_template_learns_and_continues(tmp_path: Path, engine: Any, torchrun_image: str) -> None:
    project = project_in(tmp_path, "t-ddp")
    for path in project.folder.iterdir():
        path.unlink()
    project.hvdcloud("init", "--template", "ddp", "--name", project.name)
    project.write("requirements.txt", "scikit-learn\n")
    with brought_up(project, engine):
        project.hvdcloud("run", "--", "python", "train.py", "--epochs", "8")
        ended = project.hvdcloud("run")
        assert "[0] resumed from checkpoint-008.pt: 8 epochs are done" in ended.out
        found = re.search(r"final: accuracy (\d\.\d+), .*, 2 ranks", ended.out)
        assert found, ended.out
        assert float(found[1]) >= 0.95
        assert {f"checkpoint-{epoch:03}.pt" for epoch in range(1, 13)} <= pulled(project)


# --- a node or the head is lost -----------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "index"), [("kill", 0), ("kill", 1), ("pause", 1), ("network", 1)])
def test_a_node_that_is_lost_ends_the_run_and_its_checkpoints_are_pulled(
    tmp_path: Path, engine: Any, torchrun_image: str, how: str, index: int
) -> None:
    name = f"t-torchrun-{how}-{index}"
    with cluster(tmp_path, engine, name) as project, training(project, rank=1) as screen:
        until(lambda: any("step" in file for file in in_bucket(project)), what="a checkpoint in the bucket")
        happened = disturb(engine, how, f"{name}-{index}")
        try:
            assert screen.end() in (5, 7)
            other = f"{name}-{1 - index}"
            until(lambda: not processes_in(engine, other, ["train.py"]), what="the other node's rank to end")
            if index:
                assert f"node {name}-1 was lost" in last_run(project)["reason"]
        finally:
            happened.undo()
        assert any(file.startswith("step-") for file in pulled(project))


# --- elastic ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_an_elastic_run_continues_without_a_node_and_with_it_again(
    tmp_path: Path, engine: Any, torchrun_image: str
) -> None:
    name = "t-torchrun-el"
    with cluster(tmp_path, engine, name, nodes=3, elastic={"min": 1}) as project:
        with training(project, rank=2) as screen:
            happened = disturb(engine, "kill", f"{name}-2")
            screen.wait_for("world of 2 ranks begins at step ")
            assert f"node {name}-2 was lost; torchrun is started again from the newest checkpoint" in screen.text
            happened.undo()
            screen.wait_for("world of 3 ranks begins at step ", times=2)
            begun = [int(step) for step in re.findall(r"world of \d ranks begins at step (\d+)", screen.text)]
            assert begun == sorted(begun)
            assert begun[1] > 0
            project.hvdcloud("stop")
            screen.end()
        assert last_run(project)["state"] == "stopped"
        nothing_runs(engine, project, nodes=3)
        pulled(project)


# --- each ---------------------------------------------------------------------------------------------------------


def test_each_starts_the_command_once_on_every_node_and_all_have_to_succeed(
    tmp_path: Path, engine: Any, torchrun_image: str
) -> None:
    with cluster(tmp_path, engine, "t-each", nodes=3, launcher="each") as project:
        project.write("each.py", EACH)
        out = project.hvdcloud("run", "--", "python", "each.py").out
        assert "[0] heard node 1 node 2 hostfile t-each-0 slots=1 t-each-1 slots=1 t-each-2 slots=1" in out
        fails = 'echo saved > "$HVDCLOUD_CHECKPOINT_DIR/$HVDCLOUD_NODE_RANK.pt"; exit $(($HVDCLOUD_NODE_RANK * 2))'
        ended = project.hvdcloud("run", "--json", "--", "sh", "-c", fails, expect=7).json
        assert ended["result"]["exit_code"] in (2, 4)
        assert pulled(project) >= {"0.pt"}
