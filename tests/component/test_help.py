"""What `--help` shows and what the shell completes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.harness import Project

RUN, OLDER = "20261121-101112-abcdef", "20261120-101112-abcdef"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose cluster has two nodes and two runs, beside another cluster and one that is gone."""
    (tmp_path / "project").mkdir()
    project = Project(folder=tmp_path / "project", state=tmp_path / "state", name="digits")
    (project.folder / "hvdcloud.yaml").write_text("# mine\nname: digits\nnodse: 2\n")
    digits, letters = project.state / "digits", project.state / "letters"
    digits.mkdir(parents=True)
    nodes = [{"name": "digits-0"}, {"name": "digits-1"}]
    (digits / "cluster.json").write_text(json.dumps({"id": "a1b2c3", "nodes": nodes, "runs": [OLDER, RUN]}))
    letters.mkdir()
    (letters / "cluster.json").write_text("{}")
    (project.state / "gone").mkdir()
    (project.state / "gone" / "verified.json").write_text(json.dumps({"version": 1, "verified": []}))
    (project.state / "terraform").mkdir()
    return project


def typing(words: str) -> dict[str, str]:
    """What bash sets to have this line completed."""
    return {"_HVDCLOUD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


def completed(project: Project, words: str) -> list[str]:
    """What bash is told after this line, whose last word is still being typed."""
    project.environ = typing(words)
    return project.hvdcloud().out.split()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("hvdcloud --name ", ["digits", "letters"]),
        ("hvdcloud down --name ", ["digits", "letters"]),
        ("hvdcloud down --force --name l", ["letters"]),
        ("hvdcloud sto", ["stop"]),
    ],
)
def test_the_shell_completes_what_this_machine_knows(project: Project, words: str, values: list[str]) -> None:
    assert completed(project, words) == values
