"""Where `pull` writes: names that come from the bucket never meet files that something else has made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hvdcloud.config.model import Config
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.launch import launch
from hvdcloud.lifecycle.pull import MARKER, PullResult, pull, target_folder
from hvdcloud.lifecycle.run_spec import RunOptions
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.storage.open import open_bucket
from tests.support.harness import DEADLINE
from tests.support.vanishing import Laptop

RUN = "20261121-101112-abcdef"


class Project:
    """A user's project, and a bucket with one run of its own and what others put beside it."""

    def __init__(self, laptop: Laptop) -> None:
        self.laptop = laptop
        self.folder = laptop.folder / "project"
        self.folder.mkdir()
        (self.folder / "train.py").write_text("mine")
        node = laptop.folder / "node"
        node.mkdir()
        (node / "epoch-1.pt").write_bytes(b"1")
        bucket = open_bucket(f"file://{laptop.folder}/bucket")
        up = Uploader(bucket, cluster="digits", run=RUN, node=0, directory=node, quiet_seconds=0)
        assert up.finish(DEADLINE).complete
        bucket.write("digits/train.py/x", b"evil")
        bucket.write("digits/src-abcdef/.hvdcloud/manifest-0.json", b"evil")

    def context(self) -> Context:
        context, *_ = self.laptop.context([])
        context.config = Config.model_validate({"name": "digits"})
        context.config._project_dir = self.folder
        return context

    def pull(self, to: Path | None) -> PullResult:
        with self.context() as context:
            return pull(context, run_id=None, target=to)


@pytest.fixture
def project(laptop: Laptop) -> Project:
    return Project(laptop)


def test_a_folder_with_other_files_is_refused_and_the_hint_names_one_that_is_not(project: Project) -> None:
    with pytest.raises(UsageError, match="other files than pulled checkpoints") as caught:
        project.pull(project.folder)
    assert caught.value.hint.startswith(f"--to {project.folder / 'checkpoints'} ")
    assert [path.name for path in project.folder.iterdir()] == ["train.py"]
    assert project.pull(project.folder / "checkpoints").runs[0].files == 1
    with pytest.raises(UsageError):
        project.pull(project.folder)


def test_what_is_no_run_is_left_in_the_bucket(project: Project) -> None:
    assert [run.run for run in project.pull(None).runs] == [RUN]
    folder = project.folder / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, RUN]


@pytest.mark.parametrize("to", ["new", "empty", "pulled before", "runs only"])
def test_a_folder_that_holds_nothing_else_is_used(project: Project, to: str) -> None:
    target = project.folder / "to"
    if to != "new":
        target.mkdir()
    if to == "pulled before":
        (target / MARKER).write_text("# Made by hvdcloud pull.\n*\n")
        (target / "notes.txt").write_text("mine")
    elif to == "runs only":
        (target / "20251121-101112-abcdef").mkdir()
    assert project.pull(target).runs[0].files == 1
    assert (target / RUN / "epoch-1.pt").read_bytes() == b"1"
    marked = (target / MARKER).exists()
    assert marked == (to in ("new", "empty", "pulled before"))


def test_the_projects_own_folder_may_hold_what_a_script_wrote_here(project: Project) -> None:
    (project.folder / "checkpoints").mkdir()
    (project.folder / "checkpoints" / "latest.pt").write_text("mine")
    assert project.pull(None).runs[0].files == 1
    assert (project.folder / "checkpoints" / "latest.pt").read_text() == "mine"


def test_a_link_that_a_project_brings_along_is_not_its_own_folder(project: Project) -> None:
    home = project.laptop.folder / "home"
    home.mkdir()
    (home / ".profile").write_text("mine")
    (project.folder / "checkpoints").symlink_to(home)
    with pytest.raises(UsageError, match="other files"):
        project.pull(None)
    assert [path.name for path in home.iterdir()] == [".profile"]


def test_a_launch_asks_for_its_folder_before_anything_costs(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / "checkpoints").symlink_to(project.folder)
    with project.context() as context, pytest.raises(UsageError, match="other files"):
        launch(context, RunOptions(command=("python", "train.py")))


def test_the_folder_is_kept_out_of_git(project: Project) -> None:
    with project.context() as context:
        target_folder(context, project.folder / "to")
    subprocess.run(["git", "init", "-q", str(project.folder)], check=True)
    status = subprocess.run(
        ["git", "-C", str(project.folder), "status", "--short"], check=True, capture_output=True, text=True
    )
    assert status.stdout == "?? train.py\n"
