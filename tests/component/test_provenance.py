"""What git and a CI service say of a project."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hvdcloud.image.plan.provenance import Source, source_labels, source_of
from tests.support.ci_environments import GITHUB, GITLAB


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


def test_git_says_where_the_project_comes_from_without_the_token(project: Path) -> None:
    assert source_labels(project, {}) == {
        "org.opencontainers.image.source": "https://github.com/lab/digits.git",
        "org.opencontainers.image.revision": git(project, "rev-parse", "HEAD"),
    }


@pytest.mark.parametrize("change", ["requirements.txt", "new.txt"])
def test_a_project_that_has_changed_is_dirty(project: Path, change: str) -> None:
    (project / change).write_text("torchmetrics\n")
    source = source_of(project, {})
    assert source is not None
    assert source.revision == f"{git(project, 'rev-parse', 'HEAD')}-dirty"


def test_a_repository_without_a_remote_or_without_a_commit_or_none_at_all(project: Path, tmp_path: Path) -> None:
    git(project, "remote", "remove", "origin")
    assert list(source_labels(project, {})) == ["org.opencontainers.image.revision"]
    (tmp_path / "plain").mkdir()
    assert source_labels(tmp_path / "plain", {}) == {}
    git(tmp_path / "plain", "init", "--quiet")
    assert source_labels(tmp_path / "plain", {}) == {}


def test_without_git_there_are_no_labels(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert source_labels(project, {}) == {}


@pytest.mark.parametrize(
    ("environment", "url"),
    [(GITHUB, "https://github.com/lab/digits"), (GITLAB, "https://gitlab.lab/group/digits")],
)
def test_a_ci_service_knows_better_than_git(project: Path, environment: dict[str, str], url: str) -> None:
    assert source_of(project, environment) == Source(url=url, revision="4f1c0ffee")
