"""torchrun and each on real nodes: a run trains, fails, is lost, is stopped and continues. Horovod: test_runs.py."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos import disturb, run_in
from tests.support.harness import Process, Project, Screen, labelled, processes_in, project_in, until
from tests.support.project_runs import in_bucket, last_run, pulled

pytestmark = pytest.mark.engine

# What PyTorch's own tutorials show: no word of hvdcloud but the folder for its checkpoints.
TRAIN = """
import os, pathlib, signal, sys, time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

how, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
folder = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
found = sorted(folder.glob("step-*.pt"))
first = 0
if found:
    saved = torch.load(found[-1], weights_only=True)
    model.module.load_state_dict(saved["model"])
    first = saved["step"] + 1
if rank == 0:
    print(f"world of {world} ranks begins at step {first}", flush=True)
for step in range(first, steps):
    optimizer.zero_grad()
    model(torch.ones(4, 8) * (rank + 1)).sum().backward()
    if how == "raise" and step == 3 and rank == 1:
        raise ValueError("my bug")
    if how == "exit" and step == 3 and rank == 1:
        os._exit(3)
    if how == "stuck" and step == 3 and rank == 1:
        time.sleep(10000)
    optimizer.step()
    if rank == 0 and step % (20 if pause else 1) == 0:
        name = folder / f"step-{step:05}.pt"
        torch.save({"model": model.module.state_dict(), "step": step}, name.with_suffix(".tmp"))
        name.with_suffix(".tmp").rename(name)
        for old in sorted(folder.glob("step-*.pt"))[:-2]:
            old.unlink()
        torch.save(model.module.state_dict(), "plain.pt")
    print(f"rank {rank} step {step}", flush=True)
    time.sleep(pause)
print(f"rank {rank} of {world}, {os.environ['LOCAL_RANK']} of {os.environ['LOCAL_WORLD_SIZE']} here", flush=True)
dist.destroy_process_group()
"""
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
    try:
        project.hvdcloud("up")
        yield project
    finally:
        project.hvdcloud("down", "--force")
        assert labelled(engine, name) == []


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, torchrun_image: str) -> Iterator[Project]:
    """Two nodes with two slots each, for one run after the other."""
    with cluster(tmp_path_factory.mktemp("torchrun"), engine, "t-torchrun", slots_per_node=2) as project:
        yield project


def job(how: str = "run", *, steps: int = 5, pause: float = 0.0) -> tuple[str, ...]:
    return ("--", "python", "train.py", how, str(steps), str(pause))


def nothing_runs(engine: Any, project: Project, *, nodes: int = 2) -> None:
    for index in range(nodes):
        assert [*processes_in(engine, f"{project.name}-{index}", ["train.py"])] == []
        assert [*processes_in(engine, f"{project.name}-{index}", ["torchrun"])] == []


def test_every_slot_of_every_node_has_a_rank_and_its_lines_are_told_apart(project: Project, engine: Any) -> None:
    ended = project.hvdcloud("run", "--fresh", *job())
    for rank in range(4):
        assert f"[{rank}] rank {rank} of 4, {rank % 2} of 2 here" in ended.out.splitlines()
    assert "[launcher]" not in ended.out + ended.err
    assert {"step-00004.pt", "plain.pt"} <= in_bucket(project)
    assert {"step-00004.pt", "plain.pt"} <= pulled(project)
    one = project.hvdcloud("logs", "--rank", "3").out
    assert "rank 3 of 4" in one
    assert "rank 2 of 4" not in one
    nothing_runs(engine, project)


def test_ranks_that_fill_one_node_run_there_and_others_are_refused(project: Project) -> None:
    ended = project.hvdcloud("run", "--fresh", "-np", "2", *job())
    assert ended.out.count(" of 2 here") == 2
    refused = project.hvdcloud("run", "--fresh", "-np", "3", *job(), expect=2)
    assert "3 ranks do not fill t-torchrun-1, which has 2 slots" in refused.err
    assert "-np 2" in refused.err


def test_a_run_continues_from_the_checkpoints_of_the_one_before(project: Project) -> None:
    project.hvdcloud("run", "--fresh", *job(steps=3))
    assert "world of 4 ranks begins at step 3" in project.hvdcloud("run", *job(steps=6)).out


def test_the_exception_of_the_first_rank_to_fail_is_named_without_the_launchers_own(
    project: Project, engine: Any
) -> None:
    ended = project.hvdcloud("run", "--fresh", "--json", *job("raise"), expect=7).json
    assert (
        ended["result"]["reason"] == f"rank 1 (t-torchrun-0) raised ValueError: my bug ({line_of('raise ValueError')})"
    )
    assert ended["result"]["exit_code"] == 1
    log = project.hvdcloud("logs", "--verbose").out
    assert "ChildFailedError" not in log
    assert "SignalException" not in log
    assert "step-00002.pt" in in_bucket(project)
    nothing_runs(engine, project)


def test_an_exit_code_is_the_ranks_own(project: Project) -> None:
    ended = project.hvdcloud("run", "--fresh", "--json", *job("exit"), expect=7).json
    assert ended["result"]["exit_code"] == 3
    assert ended["result"]["reason"] == "rank 1 (t-torchrun-0) exited with 3; its last line: rank 1 step 2"


def test_a_command_that_is_not_there_is_told_once(project: Project) -> None:
    ended = project.hvdcloud("run", "--fresh", "--json", "--", "trane", expect=7).json
    assert ended["result"]["exit_code"] == 127
    assert "trane: command not found" in ended["result"]["last_line"]


@contextmanager
def training(project: Project, *options: str, rank: int = 3) -> Iterator[Screen]:
    """A run that trains on and on, attached; `rank` has trained a step when the block begins."""
    with started(project, *options, rank=rank) as (screen, _):
        yield screen


@contextmanager
def started(project: Project, *options: str, rank: int = 3) -> Iterator[tuple[Screen, Process]]:
    """The same, with its process."""
    with project.started("run", "--fresh", *options, *job(steps=100000, pause=0.05)) as process:
        screen = Screen(process)
        screen.wait_for(f"rank {rank} step 3\n")
        yield screen, process


def test_stop_ends_the_run_with_its_checkpoints(project: Project, engine: Any) -> None:
    with training(project) as screen:
        project.hvdcloud("stop")
        assert screen.end() == 7
    assert last_run(project)["state"] == "stopped"
    assert "Traceback" not in project.hvdcloud("logs", "--verbose").out
    assert pulled(project) >= {"plain.pt"}
    nothing_runs(engine, project)


def test_ctrl_c_detaches_and_the_run_goes_on(project: Project) -> None:
    with started(project) as (screen, process):
        process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert last_run(project)["state"] == "running"
    project.hvdcloud("stop")


def test_a_rank_that_is_killed_ends_the_run(project: Project, engine: Any) -> None:
    with training(project) as screen:
        code, output = run_in(engine, "t-torchrun-1", "pkill", "-KILL", "-o", "-f", "^python train.py")
        assert code == 0, output
        assert screen.end() == 7
    assert re.fullmatch(r"rank [23] \(t-torchrun-1\) was killed by signal 9 \(SIGKILL\).*", last_run(project)["reason"])
    nothing_runs(engine, project)


def test_without_its_torchrun_a_node_trains_on_and_is_stopped_all_the_same(project: Project, engine: Any) -> None:
    with training(project) as screen:
        code, output = run_in(engine, "t-torchrun-1", "pkill", "-KILL", "-f", "torchrun --nnodes")
        assert code == 0, output
        steps = screen.text.count("rank 3 step")
        until(lambda: screen.text.count("rank 3 step") > steps + 20, what="more steps")
        project.hvdcloud("stop")
        assert screen.end() == 7
    assert last_run(project)["state"] == "stopped"
    nothing_runs(engine, project)


def test_a_rank_that_never_comes_to_the_others_is_named_with_all_stacks(project: Project) -> None:
    project.configure(nodes=2, limits={"stuck": "20s"}, run={"launcher": "torchrun", "slots_per_node": 2})
    ended = project.hvdcloud("run", "--fresh", "--json", *job("stuck"), expect=7).json
    groups = {tuple(group["ranks"]): group for group in ended["result"]["stuck"]["groups"]}
    assert groups[1,]["place"] == line_of("time.sleep(10000)")
    assert sorted(rank for ranks in groups for rank in ranks) == [0, 1, 2, 3]
    assert "step-00002.pt" in in_bucket(project)


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


def test_the_ddp_template_learns_and_continues(tmp_path: Path, engine: Any, torchrun_image: str) -> None:
    project = project_in(tmp_path, "t-ddp")
    for path in project.folder.iterdir():
        path.unlink()
    project.hvdcloud("init", "--template", "ddp", "--name", project.name)
    project.write("requirements.txt", "scikit-learn\n")
    try:
        project.hvdcloud("up")
        project.hvdcloud("run", "--", "python", "train.py", "--epochs", "8")
        ended = project.hvdcloud("run")
        assert "[0] resumed from checkpoint-008.pt: 8 epochs are done" in ended.out
        found = re.search(r"final: accuracy (\d\.\d+), .*, 2 ranks", ended.out)
        assert found, ended.out
        assert float(found[1]) >= 0.95
        assert {f"checkpoint-{epoch:03}.pt" for epoch in range(1, 13)} <= pulled(project)
    finally:
        project.hvdcloud("down", "--force")
        assert labelled(engine, project.name) == []


# --- a node or the head is lost -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "index"), [("kill", 1), ("pause", 1), ("kill", 0)])
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
            # What is killed without its node is not the program's failure.
            at = time.time()
            run_in(engine, f"{name}-1", "pkill", "-KILL", "-o", "-f", "^python train.py")
            screen.wait_for("world of 3 ranks begins at step ", times=3)
            assert time.time() - at < 300
            project.hvdcloud("stop")
            screen.end()
        assert last_run(project)["state"] == "stopped"
        ended = project.hvdcloud("run", "--fresh", "--json", *job("raise"), expect=7).json
        assert (
            ended["result"]["reason"] == f"rank 1 ({name}-1) raised ValueError: my bug ({line_of('raise ValueError')})"
        )
        nothing_runs(engine, project, nodes=3)
        pulled(project)


# --- each ---------------------------------------------------------------------------------------------------------


def test_each_starts_the_command_once_on_every_node_and_all_have_to_succeed(
    tmp_path: Path, engine: Any, torchrun_image: str
) -> None:
    with cluster(tmp_path, engine, "t-each", nodes=3, launcher="each", command="python each.py") as project:
        project.write("each.py", EACH)
        out = project.hvdcloud("run").out
        assert "[0] heard node 1 node 2 hostfile t-each-0 slots=1 t-each-1 slots=1 t-each-2 slots=1" in out
        fails = 'echo saved > "$HVDCLOUD_CHECKPOINT_DIR/$HVDCLOUD_NODE_RANK.pt"; exit $(($HVDCLOUD_NODE_RANK * 2))'
        ended = project.hvdcloud("run", "--json", "--", "sh", "-c", fails, expect=7).json
        assert ended["result"]["exit_code"] in (2, 4)
        assert pulled(project) >= {"0.pt"}
