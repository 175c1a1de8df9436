"""What an image's labels say of where it comes from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hvdcloud
from hvdcloud.cluster import model
from hvdcloud.image.plan.provenance import Source, public_url, source_labels, source_of, version_labels

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "lab/digits",
    "GITHUB_SHA": "4f1c0ffee",
}
GITLAB = {"CI_PROJECT_URL": "https://gitlab.lab/group/digits", "CI_COMMIT_SHA": "4f1c0ffee"}


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


def test_what_changes_outside_of_the_project_does_not_matter(project: Path) -> None:
    (project.parent / "README").write_text("changed\n")
    source = source_of(project, {})
    assert source is not None
    assert source.revision == git(project, "rev-parse", "HEAD")


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


@pytest.mark.parametrize(
    ("remote", "public"),
    [
        ("https://github.com/lab/digits", "https://github.com/lab/digits"),
        ("https://x-access-token:ghs_secret@github.com/lab/digits.git", "https://github.com/lab/digits.git"),
        ("https://ghp_secret@github.com/lab/digits", "https://github.com/lab/digits"),
        ("https://git.lab:8443/lab/digits?private_token=secret#x", "https://git.lab:8443/lab/digits"),
        ("git@github.com:lab/digits.git", "ssh://git@github.com/lab/digits.git"),
        ("git@github.com:/lab/digits.git", "ssh://git@github.com/lab/digits.git"),
        ("ssh://git:secret@git.lab:2222/digits.git", "ssh://git@git.lab:2222/digits.git"),
        ("https://user:secret@[2001:db8::1]:443/digits", "https://[2001:db8::1]:443/digits"),
        ("/home/someone/digits.git", None),
        ("../digits.git", None),
        ("file:///home/someone/digits.git", None),
        ("https://git.lab:port/digits", None),
        ("", None),
    ],
)
def test_a_remote_is_shown_without_secrets_and_without_paths_of_this_machine(remote: str, public: str | None) -> None:
    assert public_url(remote) == public


def test_versions_are_labels_and_what_has_none_is_left_out() -> None:
    assert version_labels({"torch": "2.13.0+cpu", "horovod": "0.28.1", "cuda": "", "nccl": None}) == {
        "hvdcloud-image-builder": f"hvdcloud {hvdcloud.__version__}",
        "hvdcloud-image-torch": "2.13.0+cpu",
        "hvdcloud-image-horovod": "0.28.1",
    }


def test_no_label_of_an_image_marks_an_object_of_a_cluster() -> None:
    clusters = {value for name, value in vars(model).items() if name.startswith("LABEL_")}
    names = ("cluster", "owner", "node", "nodes", "torch", "cuda")
    ours = {*version_labels(dict.fromkeys(names, "1")), *source_labels(Path(), GITHUB)}
    assert clusters >= {"managed-by", "hvdcloud-cluster"}
    assert clusters.isdisjoint(ours)
