"""The command line's own part: options, errors, documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdcloud.cli.main import hoist_globals
from tests.support.harness import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(folder=tmp_path / "project", state=tmp_path / "state", name="digits")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["up", "--json"], ["--json", "up"]),
        (["up", "--nodes", "3", "--name", "x", "-q"], ["--name", "x", "-q", "up", "--nodes", "3"]),
        (["run", "--", "python", "--json"], ["run", "--", "python", "--json"]),
        (["--config=a.yaml", "up"], ["--config=a.yaml", "up"]),
        (["up", "--name=x"], ["--name=x", "up"]),
        (["ssh", "--", "hostname"], ["ssh", "0", "--", "hostname"]),
        (["ssh", "1", "--", "hostname"], ["ssh", "1", "--", "hostname"]),
        (["up", "--name"], ["--name", "up"]),
    ],
)
def test_global_options_may_stand_anywhere_before_the_users_command(given: list[str], meant: list[str]) -> None:
    assert hoist_globals(given) == meant


def test_help_names_every_command(project: Project) -> None:
    out = project.hvdcloud("--help").out
    for command in (
        "init", "build", "push", "up", "run", "logs", "stop", "status", "ssh", "pull", "down", "list", "launch",
        "config", "doctor", "report", "offers", "prices", "setup", "resize",
    ):  # fmt: skip
        assert f"\n  {command} " in out


def test_help_loads_nothing_slow() -> None:
    program = (
        "import sys; from hvdcloud.cli.main import _run; _run(['--help'])\n"
        "slow = {'docker', 'fabric', 'google.cloud.storage', 'jinja2', 'packaging', 'pydantic', 'rich', 'textual'}\n"
        "slow |= {'yaml'}\n"
        "slow &= set(sys.modules)\n"
        "sys.exit(f'loaded {slow}' if slow else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_version(project: Project) -> None:
    assert project.hvdcloud("--version").out.startswith("hvdcloud 0.")


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
    assert "next: cd my Digits! && hvdcloud launch" in out
    folder = project.folder / "my Digits!"
    assert {"hvdcloud.yaml", "train.py", "requirements.txt"} <= {path.name for path in folder.iterdir()}
    assert "name: my-digits" in (folder / "hvdcloud.yaml").read_text()
    (folder / "train.py").write_text("mine")
    assert "already exists" in project.hvdcloud("init", "my Digits!", expect=2).err
    assert (folder / "train.py").read_text() == "mine"
    assert "there is no template 'jax'" in project.hvdcloud("init", "x", "--template", "jax", expect=2).err


@pytest.mark.parametrize(
    ("template", "framework"),
    [("torch", "torch"), ("keras", "tensorflow"), ("torch-elastic", "torch"), ("keras-elastic", "tensorflow")],
)
def test_init_writes_the_template_that_is_asked_for(project: Project, template: str, framework: str) -> None:
    project.hvdcloud("init", "x", "--template", template)
    assert f"framework: {framework}" in (project.folder / "x/hvdcloud.yaml").read_text()
    assert f"import horovod.{framework}" in (project.folder / "x/train.py").read_text()


def test_init_names_the_cluster(project: Project) -> None:
    assert project.hvdcloud("init", "x", "--name", "other", "--json").json["result"]["name"] == "other"
    assert "name: other" in (project.folder / "x" / "hvdcloud.yaml").read_text()


def test_config_schema_is_the_answer_itself(project: Project) -> None:
    schema = json.loads(project.hvdcloud("config", "schema").out)
    assert "checkpoints" in schema["properties"]
    assert json.loads(project.hvdcloud("config", "schema", "--json").out) == schema


def test_completion_knows_the_commands(project: Project) -> None:
    project.environ = {"_HVDCLOUD_COMPLETE": "complete_bash", "COMP_WORDS": "hvdcloud la", "COMP_CWORD": "1"}
    assert "launch" in project.hvdcloud(expect=None).out


def test_a_missing_engine_is_named_with_the_remedy(project: Project, tmp_path: Path) -> None:
    project.configure(image={"requirements": None})
    project.environ = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    for command in (["up"], ["list"], ["down"], ["launch", "--", "true"]):
        ended = project.hvdcloud(*command, expect=5)
        assert "no Docker engine" in ended.err
        assert "→ " in ended.err
