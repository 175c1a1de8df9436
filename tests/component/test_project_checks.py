"""What the laptop can see of a project is said before anything is made, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.checks import Finding, Status
from hvdcloud.config.model import Launcher
from hvdcloud.doctor.command import check_command
from hvdcloud.doctor.machine import project_checks
from hvdcloud.errors import UsageError
from hvdcloud.remote.code import list_code
from tests.support.configs import load_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    for name in ("train.py", "src/fit.py", "pkg/__init__.py", "pkg/train.py", "run.sh", "gen/__main__.py"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("")
    return made


def found(folder: Path, *words: str, text: str = "", launcher: Launcher = "horovod") -> tuple[Status, str, str]:
    finding = check_command(words, text, folder, lambda: list_code(folder, contents=False), launcher=launcher)
    return finding.status, finding.message, finding.hint


@pytest.mark.parametrize(
    ("text", "named", "same"),
    [
        ("horovodrun -np 4 -H localhost:4 python train.py --lr 1", "horovodrun", "horovod"),
        ("/usr/bin/mpiexec -n 2 ./run.sh", "mpiexec", ""),
        ("torchrun --nnodes 2 -m pkg.train", "torchrun", "torchrun"),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "python -m torch.distributed.run", "torchrun"),
        ("python3 -um torch.distributed.launch train.py", "python -m torch.distributed.launch", "torchrun"),
        ("accelerate launch --num_processes 2 train.py", "accelerate", "each"),
        ("deepspeed train.py", "deepspeed", "each"),
        ("OMP_NUM_THREADS=1 env A=b horovodrun -np 2 python train.py", "horovodrun", "horovod"),
        ("hvdcloud run python train.py", "hvdcloud", ""),
    ],
)
@pytest.mark.parametrize("launcher", ["horovod", "torchrun"])
def test_a_launcher_is_refused_with_what_to_type_instead(
    folder: Path, text: str, named: str, same: str, launcher: Launcher
) -> None:
    expected = f"starts {named}, but hvdcloud starts the ranks itself"
    name = "name what each rank runs: run.command: python train.py in hvdcloud.yaml"
    also = f"set run.launcher: {same} in hvdcloud.yaml"
    hint = name if same in ("", launcher) else f"{name}, and {also}"
    if same == "each":
        hint = f"{also}, which starts this command once on every node; or {name}"
    assert found(folder, text=text, launcher=launcher) == (Status.FAILED, f"run.command {expected}", hint)
    status, message, hint = found(folder, text, launcher=launcher)
    assert status is Status.FAILED
    assert message.endswith(expected)
    assert "name what each rank runs: hvdcloud run python train.py" in hint


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("torchrun --nnodes $HVDCLOUD_NODES train.py", Status.OK),
        ("accelerate launch --machine_rank $HVDCLOUD_NODE_RANK train.py", Status.OK),
        ("deepspeed --hostfile $HVDCLOUD_HOSTFILE train.py", Status.OK),
        ("python -m torch.distributed.run train.py", Status.OK),
        ("horovodrun -np 2 python train.py", Status.FAILED),
        ("hvdcloud run", Status.FAILED),
    ],
)
def test_with_each_a_command_may_start_its_own_processes(folder: Path, text: str, status: Status) -> None:
    assert found(folder, text=text, launcher="each")[0] is status


SPAWNS = """
import torch.distributed as dist
import torch.multiprocessing as mp
def main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
mp.spawn(main)
"""
MISFITS = {
    ("horovod", "import torch\nimport torch.distributed as dist\n"): (
        "train.py:2 imports torch.distributed, and run.launcher is horovod: each rank would train alone",
        "set run.launcher: torchrun in hvdcloud.yaml",
    ),
    ("torchrun", "import horovod.torch as hvd\n"): (
        "train.py:1 imports horovod.torch, and run.launcher is torchrun, which starts no Horovod",
        "set run.launcher: horovod in hvdcloud.yaml; or let it use torch.distributed, as "
        "`hvdcloud init --template ddp` shows",
    ),
    ("torchrun", SPAWNS): (
        "train.py:6 calls torch.multiprocessing.spawn, and run.launcher is torchrun, which starts all ranks itself",
        "take that out and read LOCAL_RANK, as `hvdcloud init --template ddp` shows; or set run.launcher: each in "
        "hvdcloud.yaml",
    ),
}


@pytest.mark.parametrize("case", MISFITS, ids=["torch.distributed", "horovod", "spawn"])
@pytest.mark.parametrize(
    ("file", "command"), [("train.py", "python train.py"), ("pkg/train.py", "A=b python -m pkg.train --lr 1")]
)
def test_a_script_for_another_launcher_is_refused_with_the_import_that_says_so(
    folder: Path, case: tuple[Launcher, str], file: str, command: str
) -> None:
    launcher, text = case
    (folder / file).write_text(text)
    assert found(folder, text=command, launcher=launcher) == (Status.FAILED, *MISFITS[case])


@pytest.mark.parametrize(
    ("launcher", "text"),
    [
        ("torchrun", "import torch.distributed\n"),
        ("torchrun", "import torch.distributed\nimport horovod.torch\n"),
        ("torchrun", "try:\n    import horovod.torch\nexcept ImportError:\n    horovod = None\n"),
        ("torchrun", "print 'of another Python'\n"),
        ("torchrun", "import torch\n"),
        pytest.param("torchrun", f"{SPAWNS}if 'LOCAL_RANK' in os.environ: pass\n", id="spawns or reads LOCAL_RANK"),
        ("horovod", "import torch.distributed\nimport horovod.torch\n"),
        ("horovod", "import lightning\nTrainer(strategy='horovod')\n"),
        ("horovod", "import jax\n"),
        ("horovod", "import torch\n"),
        ("each", "import horovod.torch\n"),
        pytest.param("each", SPAWNS, id="spawns"),
    ],
)
def test_a_script_that_may_be_right_for_a_launcher_is_not_refused(folder: Path, launcher: Launcher, text: str) -> None:
    (folder / "train.py").write_text(text)
    assert found(folder, text="python train.py", launcher=launcher)[0] is Status.OK


def test_the_configured_launcher_is_what_the_script_is_compared_with(folder: Path) -> None:
    (folder / "hvdcloud.yaml").write_text("name: digits\nrun: {launcher: torchrun}\n")
    (folder / "train.py").write_text("import horovod.torch\n")
    (check,) = (
        each for each in project_checks(load_config(folder / "hvdcloud.yaml", environ={})) if each.name == "files"
    )
    assert (check.run().status, check.blocks) == (Status.FAILED, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train.py", "--lr", "1"], "hvdcloud run python train.py --lr 1"),
        (["./train.py"], "hvdcloud run python ./train.py"),
        (["src/fit.py"], "hvdcloud run python src/fit.py"),
        (["run.sh"], "hvdcloud run bash run.sh"),
    ],
)
def test_a_file_that_is_no_program_is_refused_with_what_to_type(folder: Path, words: list[str], hint: str) -> None:
    status, message, said = found(folder, *words)
    assert (status, said) == (Status.FAILED, hint)
    assert message.endswith(f"starts {words[0]}, which is no program that nodes can start")


@pytest.mark.parametrize(
    "text",
    [
        "python train.py",
        "python -u -W ignore -X dev train.py",
        "python -m pkg.train",
        "python -m pkg",
        "python -m gen",
        "python -m pip.something",
        "python -mhttp.server",
        "python -c 'import x'",
        "python /opt/tool.py",
        "python $SCRIPT",
        "python ~/x.py",
        "python ../of-the-image.py",
        "make && python made/by_make.py",
        "cd src && python fit.py",
        "bash -eux -o pipefail run.sh",
        "bash -lc 'python made.py'",
        "env A=b python train.py",
        "nvidia-smi",
        "my-installed-tool train.py",
        "echo horovodrun",
        "python train.py --launcher horovodrun",
        "python train.py 'a;b' # horovodrun",
        "#!/bin/bash\nset -euo pipefail\npython train.py",
        "\n#!/usr/bin/env python3\nimport train",
        "# horovodrun is not needed\nset -e\npython train.py",
        "for seed in 1 2; do python train.py --seed $seed; done",
        "python - <<END\nimport train\nEND",
        "python < train.py",
        "if [[ -n $LR ]]; then python train.py; fi",
    ],
)
def test_what_may_be_right_is_not_refused(folder: Path, text: str) -> None:
    assert found(folder, text=text)[0] is Status.OK
    assert found(folder, text)[0] is Status.OK


def links(folder: Path) -> dict[str, str]:
    return {file.path: file.link for file in list_code(folder) if file.link is not None}


@pytest.mark.parametrize(
    ("link", "written", "sent"),
    [
        ("a.py", "train.py", "train.py"),
        ("src/a.py", "../train.py", "../train.py"),
        ("src/a.py", "{folder}/train.py", "../train.py"),
        ("a", "{folder}/src", "src"),
        ("a.py", "../project/train.py", "train.py"),
        ("a.py", "{alias}/train.py", "train.py"),
        ("broken", "nowhere", "nowhere"),
        ("src/broken", "{folder}/nowhere", "../nowhere"),
        ("loop", "loop", "loop"),
    ],
)
def test_a_link_inside_a_project_works_however_it_is_written(folder: Path, link: str, written: str, sent: str) -> None:
    (folder.parent / "alias").symlink_to(folder)
    (folder / link).symlink_to(written.format(folder=folder, alias=folder.parent / "alias"))
    assert links(folder) == {link: sent}
    assert links(folder.parent / "alias") == {link: sent}


@pytest.mark.parametrize("written", ["{outside}", "{outside}/key", "../outside", "inner", "/nowhere", "/dev/null"])
def test_a_link_that_leads_out_is_named_and_never_followed(folder: Path, written: str) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "key").write_text("secret")
    (folder / ".gitignore").write_text("/inner\n")
    (folder / "inner").symlink_to(outside)
    (folder / "data").symlink_to(written.format(outside=outside))
    with pytest.raises(UsageError, match=r"^data is a link that leads out of the project") as raised:
        list_code(folder)
    assert "line data in .dockerignore" in raised.value.hint
    (folder / ".dockerignore").write_text("data\n")
    assert links(folder) == {}


def test_a_large_project_is_warned_of_by_the_name_of_its_largest_file(folder: Path) -> None:
    (folder / "hvdcloud.yaml").write_text("name: digits\n")
    config = load_config(folder / "hvdcloud.yaml", environ={})

    def check() -> Finding:
        return next(each for each in project_checks(config) if each.name == "code").run()

    assert check().status is Status.OK
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(100_000_001)
    warned = check()
    assert (warned.status, ".dockerignore" in warned.hint) == (Status.WARNING, True)
    assert warned.message.endswith("100.0 MB; the largest is huge.bin (100.0 MB)")
