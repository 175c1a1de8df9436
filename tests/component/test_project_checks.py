"""What the laptop can see of a project is said before anything is made, with exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdcloud.checks import Status
from hvdcloud.doctor.command import check_command
from hvdcloud.errors import UsageError
from hvdcloud.remote.code import list_code
from tests.support.harness import Project


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    for name in ("train.py", "src/fit.py", "pkg/__init__.py", "pkg/train.py", "run.sh", "gen/__main__.py"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("")
    return made


def found(folder: Path, *words: str, text: str = "") -> tuple[Status, str, str]:
    finding = check_command(
        words, text, folder, lambda: frozenset(file.path for file in list_code(folder, contents=False))
    )
    return finding.status, finding.message, finding.hint


@pytest.mark.parametrize(
    ("text", "launcher", "better"),
    [
        ("horovodrun -np 4 -H localhost:4 python train.py --lr 1", "horovodrun", "python train.py --lr 1"),
        ("mpirun -np 2 -x PATH python3 -u train.py", "mpirun", "python3 -u train.py"),
        ("/usr/bin/mpiexec -n 2 ./run.sh", "mpiexec", "python train.py"),
        ("torchrun --nproc_per_node=4 train.py --lr 1", "torchrun", "python train.py --lr 1"),
        ("torchrun --nnodes 2 -m pkg.train", "torchrun", "python -m pkg.train"),
        (
            "python -m torch.distributed.run --nproc_per_node 2 train.py",
            "python -m torch.distributed.run",
            "python train.py",
        ),
        ("python3 -um torch.distributed.launch train.py", "python -m torch.distributed.launch", "python train.py"),
        ("accelerate launch --num_processes 2 train.py", "accelerate", "python train.py"),
        ("deepspeed --num_gpus 2 train.py", "deepspeed", "python train.py"),
        ("srun -N 2 python train.py", "srun", "python train.py"),
        ("OMP_NUM_THREADS=1 env A=b horovodrun -np 2 python train.py", "horovodrun", "python train.py"),
        ("hvdcloud run python train.py", "hvdcloud", "python train.py"),
    ],
)
def test_a_launcher_is_refused_with_what_to_type_instead(folder: Path, text: str, launcher: str, better: str) -> None:
    expected = f"starts {launcher}, but hvdcloud starts the ranks itself"
    assert found(folder, text=text) == (
        Status.FAILED,
        f"run.command {expected}",
        f"run.command: {better} in hvdcloud.yaml",
    )
    status, message, hint = found(folder, text)
    assert status is Status.FAILED
    assert message.endswith(expected)
    assert hint == f"hvdcloud run {better}"


def test_a_launcher_behind_other_words_is_refused_and_what_is_only_called_so_is_not(folder: Path) -> None:
    _, message, hint = found(folder, "env", "A=b", "horovodrun", "-np", "2", "python", "train.py")
    assert "starts horovodrun, but" in message
    assert hint == "hvdcloud run python train.py"
    assert found(folder, "rocket", "launch")[0] is Status.OK


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


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("python -u train2.py", "train2.py"),
        ("bash -x go.sh", "go.sh"),
        ("./go.sh", "./go.sh"),
        ("A=b python train2.py && true", "train2.py"),
    ],
)
def test_a_script_that_is_not_there_is_named(folder: Path, text: str, file: str) -> None:
    assert found(folder, text=text)[:2] == (Status.FAILED, f"run.command starts {file}, which is not in {folder}")


@pytest.mark.parametrize(
    ("ignore", "lines", "line"),
    [
        (".dockerignore", "*\n!requirements.txt\n!src\n", "line 1 of .dockerignore (*)"),
        (".dockerignore", "# code\n\n**/*.py\n", "line 3 of .dockerignore (**/*.py)"),
        (".gitignore", "*.log\ntrain*\n", "line 2 of project/.gitignore (train*)"),
        ("../.gitignore", "*.log\nproject/\n", "line 2 of .gitignore (project/)"),
    ],
)
def test_the_line_that_excludes_the_script_is_named(folder: Path, ignore: str, lines: str, line: str) -> None:
    subprocess.run(["git", "init", "--quiet", str(folder.parent)], check=True)
    (folder / ignore).write_text(lines)
    assert found(folder, text="python train.py")[1] == f"run.command starts train.py, which {line} excludes"


def test_a_script_outside_of_the_project_is_named(folder: Path) -> None:
    (folder.parent / "above.py").write_text("")
    assert (
        found(folder, text="python ../above.py")[1] == f"run.command starts ../above.py, which is outside of {folder}"
    )


# --- links ----------------------------------------------------------------------------------------------------------


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
def test_a_link_inside_the_project_works_however_it_is_written(
    folder: Path, link: str, written: str, sent: str
) -> None:
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


def test_virtual_environments_are_no_code(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "my env")], check=True)
    (folder / "tools" / "conda" / "conda-meta").mkdir(parents=True)
    (folder / "tools" / "conda" / "python").symlink_to(sys.executable)
    assert {file.path.partition("/")[0] for file in list_code(folder)} == {"train.py", "src", "pkg", "run.sh", "gen"}


# --- the commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def project(folder: Path, tmp_path: Path) -> Project:
    # No engine answers: what is said is said before one is asked.
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    return Project(folder=folder, state=tmp_path / "state", name="digits", environ=environ)


@pytest.mark.parametrize("command", ["up", "launch"])
@pytest.mark.parametrize(
    ("text", "made", "said"),
    [
        ("horovodrun -np 2 python train.py", "", "run.command starts horovodrun, but hvdcloud starts the ranks itself"),
        ("python gone.py", "", "run.command starts gone.py, which is not in "),
        ("python train.py", "*\n!src\n", "run.command starts train.py, which line 1 of .dockerignore (*) excludes"),
        ("python train.py", "link", "data is a link that leads out of the project, to /mnt; nodes do not have that"),
    ],
)
def test_what_the_laptop_can_see_is_said_before_an_engine_is_asked(
    project: Project, command: str, text: str, made: str, said: str
) -> None:
    project.write("hvdcloud.yaml", f"name: digits\nrun: {{command: {text}}}\n")
    if made == "link":
        (project.folder / "data").symlink_to("/mnt")
    elif made:
        project.write(".dockerignore", made)
    ended = project.hvdcloud(command, expect=2)
    assert ended.err.startswith(f"error: {said}")
    checks = {
        check["name"]: check for check in project.hvdcloud("doctor", "--json", expect=None).json["result"]["checks"]
    }
    name = "code" if made == "link" else "files"
    assert checks[name]["status"] == "failed"
    assert checks[name]["message"].startswith(said)
