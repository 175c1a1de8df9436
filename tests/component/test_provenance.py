"""What git says of a project, and GitHub Actions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hvdcloud.image.plan.provenance import source_labels

REVISION = "org.opencontainers.image.revision"


def git(folder: Path, *arguments: str) -> str:
    nobody = {f"GIT_{who}_{what}": "someone@lab" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *arguments],
        cwd=folder,
        env={**os.environ, **nobody, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in a folder of a repository, all of it committed."""
    folder = tmp_path / "repository" / "digits"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("scikit-learn\n")
    (folder.parent / "README").write_text("other things\n")
    git(folder, "init", "--quiet", "..")
    git(folder, "add", "--all", "..")
    git(folder, "commit", "--quiet", "--message", "first")
    git(folder, "remote", "add", "origin", "https://someone:ghp_secret@github.com/lab/digits.git")
    return folder


def test_git_says_the_commit_and_nothing_of_the_remote_with_its_token(project: Path) -> None:
    assert source_labels(project, {}) == {REVISION: git(project, "rev-parse", "HEAD")}


@pytest.mark.parametrize("change", ["requirements.txt", "new.txt"])
def test_a_project_that_has_changed_is_dirty(project: Path, change: str) -> None:
    (project / change).write_text("torchmetrics\n")
    assert source_labels(project, {}) == {REVISION: f"{git(project, 'rev-parse', 'HEAD')}-dirty"}


def test_a_repository_without_a_commit_or_none_at_all(tmp_path: Path) -> None:
    assert source_labels(tmp_path, {}) == {}
    git(tmp_path, "init", "--quiet")
    assert source_labels(tmp_path, {}) == {}


def test_without_git_there_are_no_labels(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert source_labels(project, {}) == {}


def test_github_actions_names_the_repository(project: Path) -> None:
    environment = {"GITHUB_SERVER_URL": "https://github.lab", "GITHUB_REPOSITORY": "lab/digits"}
    assert source_labels(project, environment) == {
        REVISION: git(project, "rev-parse", "HEAD"),
        "org.opencontainers.image.source": "https://github.lab/lab/digits",
    }
