"""A project that was cloned from anywhere: its hvdcloud.yaml asks for what is the user's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.google_account import key_document
from tests.support.harness import Project
from tests.support.http_server import Asked, Reply, answering


@pytest.fixture
def heard() -> list[Asked]:
    return []


@pytest.fixture
def listener(heard: list[Asked]) -> Iterator[str]:
    """A server of the attacker's, which notes what it is sent."""

    def answer(asked: Asked) -> Reply:
        heard.append(asked)
        return Reply({})

    with answering(answer) as url:
        yield url


@pytest.fixture
def project(project: Project, tmp_path: Path, listener: str) -> Project:
    """With a user who is logged in to Google Cloud."""
    login = key_document(project="lab", email="me@lab.iam.gserviceaccount.com", token_uri=f"{listener}/token")
    (tmp_path / "key.json").write_text(json.dumps(login))
    project.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "key.json")
    return project


@pytest.mark.parametrize("command", [["list"], ["status"], ["down"], ["offers"], ["doctor"], ["config", "show"]])
def test_no_command_sends_the_users_login_to_a_server_that_the_file_names(
    project: Project, listener: str, heard: list[Asked], command: list[str]
) -> None:
    project.write("hvdcloud.yaml", f"name: digits\nprovider: gce\ngce: {{<<: {{endpoint: '{listener}'}}}}\n")
    ended = project.hvdcloud(*command, expect=2)
    assert heard == []
    assert "unknown key gce.endpoint" in ended.err


def test_the_server_that_the_environment_names_gets_it(project: Project, listener: str, heard: list[Asked]) -> None:
    project.write("hvdcloud.yaml", "name: digits\nprovider: gce\n")
    project.environ["HVDCLOUD_GOOGLE_ENDPOINT"] = listener
    project.hvdcloud("list")
    assert any("Authorization" in asked.headers for asked in heard)


@pytest.mark.parametrize("path", [".", pytest.param("", marks=pytest.mark.nightly), "./bin:bin"])
def test_no_program_of_the_project_runs(project: Project, tmp_path: Path, path: str) -> None:
    for name in ("docker", "git", "ssh", "gcloud", "terraform", "tofu", "nvidia-smi", "pip", "python3"):
        for file in (project.folder / name, project.folder / "bin" / name):
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/trace\n")
            file.chmod(0o755)
    project.write("hvdcloud.yaml", "name: digits\nprovider: ssh\nssh: {hosts: [192.0.2.1]}\n")
    project.write("-/x", "")
    environ = {**os.environ, **project.environ, "HVDCLOUD_STATE_DIR": str(project.state), "PATH": path}
    for arguments in (["doctor"], ["list"], ["build"], ["setup", "--plan-only"]):
        ended = subprocess.run(
            [sys.executable, "-c", "from hvdcloud.cli.main import main; main()", *arguments],
            cwd=project.folder, env={**environ, "PYTHONSAFEPATH": "1"}, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        # Doctor names the program that would run.
        assert re.search(rb"(\./|bin/)ssh", ended.stdout) is None, ended.stdout
    assert not (tmp_path / "trace").exists()


def test_python_m_imports_no_library_of_the_project(project: Project, tmp_path: Path) -> None:
    for name in ("yaml", "docker", "typer", "rich", "pydantic", "sitecustomize", "usercustomize", "requests"):
        project.write(f"{name}.py", f"open({str(tmp_path / 'trace')!r}, 'a').write('{name} ')\n")
    project.write("hvdcloud.yaml", "name: digits\n")
    environ = {**os.environ, "HVDCLOUD_STATE_DIR": str(project.state)}
    shown = subprocess.run(
        [sys.executable, "-m", "hvdcloud", "config", "show"],
        cwd=project.folder, env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (shown.returncode, (tmp_path / "trace").exists()) == (0, False), shown.stderr
