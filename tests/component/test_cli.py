"""The command line's own part: options, errors, documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup

from hvdcloud.cli.app import Invocation
from hvdcloud.cli.main import command_line
from tests.support.configs import load_config
from tests.support.harness import Project


@pytest.mark.parametrize(
    ("line", "kept", "command"),
    [
        ("up --json", "json", None),
        ("--json up", "json", None),
        ("up --nodes 3 --name x -q", "quiet x", None),
        ("--config=a.yaml up", "a.yaml", None),
        ("up --name=x", "x", None),
        ("--name y up --name x", "x", None),
        ("logs run -q", "quiet", None),
        ("--json config show -v", "json verbose", None),
        ("config --json show -v", "json verbose", None),
        ("run -- python --json", "", "python --json"),
        ("run -- -q", "", "-q"),
        ("run python t.py --epochs 2 --json", "", "python t.py --epochs 2 --json"),
        ("run -q -np 4 -d sh -c x", "quiet", "sh -c x"),
        ("launch --nodes=4 --name x sh -- -q", "x", "sh -- -q"),
        ("--name x launch --bucket d sh", "x", "sh"),
        ("ssh --name x 1 df -h -q", "x", "df -h -q"),
        ("ssh 1 -- hostname", "", "-- hostname"),
    ],
)
def test_global_options_stand_anywhere_before_the_users_command(line: str, kept: str, command: str | None) -> None:
    invocation, context = Invocation(), None
    parser, words = command_line(), line.split()
    while words:
        context = parser.make_context("", words, parent=context, obj=invocation)
        if isinstance(parser, TyperGroup):
            _, parser, words = parser.resolve_command(context, [*context._protected_args, *context.args])
        else:
            words = []
    assert context is not None
    console = invocation.console
    flags = {"json": console.as_json, "quiet": console.quiet, "verbose": console.verbose}
    said = [invocation.config, invocation.name, *(name for name, given in flags.items() if given)]
    assert sorted(str(each) for each in said if each) == sorted(kept.split())
    assert command is None or context.params["command"] == command.split()


def test_an_unknown_command_or_option_is_a_usage_error(project: Project) -> None:
    assert "error: No such command 'upp'" in project.hvdcloud("upp", expect=2).err
    assert "→ hvdcloud up --help" in project.hvdcloud("up", "--nodse", "3", expect=2).err


def test_errors_are_documents_with_json(project: Project) -> None:
    ended = project.hvdcloud("up", "--json", expect=2)
    assert ended.json["exit_code"] == 2
    assert ended.json["command"] == "up"
    assert "no hvdcloud.yaml" in ended.json["error"]["message"]
    assert "hvdcloud init" in ended.json["error"]["hint"]
    assert project.hvdcloud("upp", "--json", expect=2).json["exit_code"] == 2


def test_init_writes_a_project_and_never_overwrites(project: Project) -> None:
    out = project.hvdcloud("init", "my Digits!").out
    assert out.endswith("\nnext: cd 'my Digits!' && hvdcloud launch\n")
    folder = project.folder / "my Digits!"
    assert {"hvdcloud.yaml", "train.py", "requirements.txt"} <= {path.name for path in folder.iterdir()}
    assert "name: my-digits" in (folder / "hvdcloud.yaml").read_text()
    (folder / "train.py").write_text("mine")
    assert "already exists" in project.hvdcloud("init", "my Digits!", expect=2).err
    assert (folder / "train.py").read_text() == "mine"
    assert "there is no template 'jax'" in project.hvdcloud("init", "x", "--template", "jax", expect=2).err


def test_a_character_that_the_encoding_lacks_is_written_as_an_escape(project: Project) -> None:
    project.environ["PYTHONIOENCODING"], project.warm = "ascii", False
    assert "wrote gr\\xf6\\xdfe/train.py" in project.hvdcloud("init", "größe").out


def files_of(project: Project) -> dict[str, str]:
    return {path.name: path.read_text() for path in project.folder.iterdir()}


def test_init_script_writes_hvdcloud_yaml_only_and_says_what_it_took_for_what(project: Project) -> None:
    project.write("my_train.py", "import pandas\nimport torch\n")
    project.write(".gitignore", "*.log\n")
    before = files_of(project)
    said = project.hvdcloud("init", "--script", "my_train.py").out.splitlines()
    assert (said[0], said[-1]) == ("wrote hvdcloud.yaml", "next: hvdcloud launch")
    assert "note: my_train.py imports pandas: list their packages in requirements.txt" in said
    written = files_of(project)
    config = load_config(project.folder / "hvdcloud.yaml", environ={})
    assert {**before, "hvdcloud.yaml": written["hvdcloud.yaml"]} == written
    assert (config.run.command, config.image.framework, config.gce.gpu) == ("python my_train.py", "torch", None)
    assert (config.name, config.limits.max_run_duration, config.checkpoints.keep_every) == ("project", 43200, 60)
    assert "  command: python my_train.py " in written["hvdcloud.yaml"]
    again = project.hvdcloud("init", "--script", "my_train.py", expect=2).err
    assert again.splitlines() == ["error: hvdcloud.yaml already exists", "  → hvdcloud launch python my_train.py"]
    assert files_of(project) == written


def test_init_script_refuses_what_it_cannot_describe(project: Project, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").write_text("import torch\n")
    ended = project.hvdcloud("init", "--script", "../other/train.py", expect=2)
    assert "  → hvdcloud init ../other --script ../other/train.py" in ended.err
    assert "→ hvdcloud init --script FILE" in project.hvdcloud("init", "--script", "no.py", expect=2).err
    assert project.hvdcloud("init", "../other", "--script", "train.py").out.startswith("wrote ../other/hvdcloud.yaml")
    assert "no machine has 3 NVIDIA L4" in project.hvdcloud("init", "x", "--gpus", "3", expect=2).err
    assert list(project.folder.iterdir()) == []


def test_init_works_in_a_folder_with_other_files_and_keeps_them(project: Project) -> None:
    project.write(".gitignore", "*.log\n")
    project.write("helper.py", "import os\n")
    out = project.hvdcloud("init").out
    assert "kept .gitignore as it is\n" in out
    assert (project.folder / ".gitignore").read_text() == "*.log\n"
    assert (project.folder / "train.py").exists()


def test_config_show_says_each_value_and_where_it_is_from(project: Project) -> None:
    project.write("hvdcloud.yaml", "name: digits\nlimits:\n  idle: 45m\n")
    project.environ = {"HVDCLOUD_NODES": "5"}
    rows = [line.split() for line in project.hvdcloud("config", "show", "--name", "other").out.splitlines()]
    assert rows[0] == ["KEY", "FROM", "VALUE"]
    assert ["name", "--name", "other"] in rows
    assert ["nodes", "HVDCLOUD_NODES", "5"] in rows
    assert ["limits.idle", "hvdcloud.yaml:3", "45m"] in rows
    assert ["run.controller", "default", "gloo"] in rows
    result = project.hvdcloud("config", "show", "--json").json["result"]
    assert result["file"] == "hvdcloud.yaml"
    assert {"key": "limits.idle", "value": 2700, "source": "file", "place": "hvdcloud.yaml:3"} in result["settings"]
    assert {"key": "gce.gpu", "value": None, "source": "default", "place": "default"} in result["settings"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_reason_to_fail(closed: str, tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m hvdcloud init {tmp_path}/digits --json {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "digits" / "train.py").is_file()
