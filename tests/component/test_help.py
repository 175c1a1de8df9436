"""What the shell completes."""

from __future__ import annotations

import json

import pytest

from tests.support.harness import Project


@pytest.fixture
def project(project: Project) -> Project:
    """With an hvdcloud.yaml that is wrong, on a machine with two clusters and what is left of a third."""
    project.write("hvdcloud.yaml", "name: digits\nnodse: 2\n")
    for name in ("digits", "letters"):
        (project.state / name).mkdir(parents=True)
        (project.state / name / "cluster.json").write_text("{}")
    (project.state / "gone").mkdir()
    (project.state / "gone" / "verified.json").write_text(json.dumps({"version": 1, "verified": []}))
    (project.state / "terraform").mkdir()
    return project


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
    # What bash sets to have this line completed, whose last word is still being typed.
    project.environ = {"_HVDCLOUD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert project.hvdcloud().out.split() == values
