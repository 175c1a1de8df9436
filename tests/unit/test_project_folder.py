"""A cluster is its project's: another folder's project of the same name is told so before anything is touched."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cli.app import Invocation
from hvdcloud.cluster.model import Cluster
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.down import down
from hvdcloud.lifecycle.launch import launch
from hvdcloud.lifecycle.run import run
from hvdcloud.lifecycle.run_spec import RunOptions
from hvdcloud.lifecycle.up import up
from tests.support.views import cluster

CLUSTER = cluster(id="abcdef", provider="local", nodes=(), bucket="file:///bucket")


class Untouched:
    """A provider that knows the cluster, and is asked for nothing else."""

    name = "local"

    def cluster(self, name: str) -> Cluster | None:
        return CLUSTER if name == CLUSTER.name else None

    def close(self) -> None:
        pass


@pytest.fixture
def folders(tmp_path: Path, state_root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two projects of one name; the cluster was made for the first."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hvdcloud.yaml").write_text("name: digits\n")
        (tmp_path / name / "train.py").write_text("")
    here = context(tmp_path / "first", monkeypatch)
    here.state.make()
    here.state.save(
        ClusterRecord(id=CLUSTER.id, project=str(here.config.project_dir), runs=("20260101-000000-abcdef",))
    )
    return tmp_path / "first", tmp_path / "second"


def context(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Context:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HVDCLOUD_NAME", raising=False)
    found = Invocation(console=Console(err=io.StringIO()), **options).context()
    found.__dict__["provider"] = Untouched()
    return found


VERBS: Mapping[str, Callable[[Context], object]] = {
    "up": up,
    "run": lambda each: run(each, RunOptions()),
    "launch": lambda each: launch(each, RunOptions()),
    "down": lambda each: down(each, force=True),
    "status": Context.cluster,
    "pull": Context.find,
}


@pytest.mark.parametrize("verb", VERBS)
def test_another_project_is_told_so_and_asked_for_a_name(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    first, second = folders
    here = context(second, monkeypatch)
    with pytest.raises(UsageError) as caught:
        VERBS[verb](here)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.message == f"cluster digits belongs to the project in {first}, not to that in {second}"
    assert "take another name here" in caught.value.hint
    # The name stays in the command, although this folder's file has it too.
    assert "hvdcloud down --name digits" in here.console._short(caught.value.hint)


def test_who_types_the_name_may_look_at_it_and_delete_it_from_anywhere(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert context(folders[1], monkeypatch, name="digits").query() is not None
    assert context(folders[1], monkeypatch).of("digits").query() is not None  # As `down --all` does.
    (tmp_path / "empty").mkdir()
    assert context(tmp_path / "empty", monkeypatch, name="digits").query() is not None


def test_a_project_that_was_moved_is_the_same_project(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders[0].rename(tmp_path / "moved")
    assert context(tmp_path / "moved", monkeypatch).query() is not None
