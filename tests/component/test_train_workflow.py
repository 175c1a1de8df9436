"""`.github/workflows/train.yml`, which users copy: what a launch may cost, what it says, and that nothing is left."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.cost import Cost
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, JobFailedError
from hvdcloud.lifecycle.down import DownResult
from hvdcloud.lifecycle.launch import LaunchResult
from hvdcloud.lifecycle.pull import PullResult
from hvdcloud.lifecycle.run_result import RunResult
from hvdcloud.lifecycle.up import UpResult
from tests.support.workflows import read_workflow

RUN = "20261121-111045-d1ba2a"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return read_workflow("train.yml")


def step(workflow: dict[Any, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in workflow["jobs"]["train"]["steps"] if each.get("name") == name]
    return dict(found)


def bash(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a step as GitHub does: `shell: bash`."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def launched(*, reason: str = "", metrics: dict[str, float] | None = None) -> str:
    """What `hvdcloud launch --json` prints."""
    result = LaunchResult(
        up=UpResult(
            cluster="pull-7", id="d1ba2a", nodes=(), image="digits@sha256:0", dollars_per_hour=1.5,
            worst_case_dollars=4.98, created=True, seconds=60.0,
        ),
        run=RunResult(
            run=RUN, cluster="pull-7", state="failed" if reason else "succeeded", ranks=2, exit_code=int(bool(reason)),
            seconds=90.0, checkpoint_files=12, metrics=metrics or {"accuracy": 0.992},
        ),
        pull=PullResult(cluster="pull-7", bucket="gs://b", runs=(), ended=True, seconds=1.0),
        down=DownResult(cluster="pull-7", deleted=(), nothing_to_do=False, seconds=40.0),
        seconds=312.0,
        cost=Cost(dollars=0.1149, dollars_per_hour=1.5, seconds=276.0, nodes=2),
    )  # fmt: skip
    out = io.StringIO()
    error = JobFailedError(reason, hint="hvdcloud logs shows it", exit_code=1) if reason else None
    code = ExitCode.JOB if reason else ExitCode.OK
    Console(as_json=True, out=out).document("launch", result=result, exit_code=code, error=error)
    return out.getvalue()


def table(workflow: dict[Any, Any], folder: Path, document: str | None) -> dict[str, str]:
    """The table that the comment has."""
    if shutil.which("jq") is None:
        pytest.skip("there is no jq, which GitHub's machines have")
    if document is not None:
        (folder / "launch.json").write_text(document)
    place = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/n", "GITHUB_RUN_ID": "1"}
    done = bash(
        step(workflow, "The table")["run"],
        folder,
        RESULT=str(folder),
        GITHUB_STEP_SUMMARY=str(folder / "page"),
        **place,
    )
    assert done.returncode == 0, done.stderr
    said = (folder / "summary.md").read_text()
    assert (folder / "page").read_text() == said
    lines = said.splitlines()
    assert lines[:2] == ["| training | |", "| --- | --- |"]
    assert lines[-2:] == ["", "[Log and page](https://github.com/o/n/actions/runs/1)"]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[2:-2]]
    assert {len(row) for row in cells} == {4}
    return {row[1]: row[2] for row in cells}


def test_only_a_label_trains_and_only_what_the_repositorys_own_people_pushed(workflow: dict[Any, Any]) -> None:
    # YAML's `on` is true.
    assert workflow[True] == {"pull_request": {"types": ["labeled"]}}
    job = workflow["jobs"]["train"]
    assert job["if"] == (
        "github.event.label.name == 'train' && github.event.pull_request.head.repo.full_name == github.repository"
    )
    assert job["environment"] == "train"
    assert job["permissions"] == {"contents": "read", "id-token": "write"}
    assert workflow["jobs"]["comment"]["permissions"] == {"pull-requests": "write"}
    # Nothing that is installed has Google's credentials, and the project's folder has no file with them.
    names = [each.get("name") or each["uses"].partition("@")[0] for each in job["steps"]]
    assert names.index("Install hvdcloud") < names.index("google-github-actions/auth") < names.index("Train")
    assert job["defaults"]["run"]["working-directory"] == "project"


def test_what_it_may_cost_is_not_the_pull_requests_to_say(workflow: dict[Any, Any]) -> None:
    job = workflow["jobs"]["train"]
    assert job["env"]["HVDCLOUD_LIMITS__MAX_COST"] == "${{ vars.MAX_COST || '5' }}"
    hours = int(job["env"]["HVDCLOUD_LIMITS__MAX_RUN_DURATION"].removesuffix("h"))
    launch = step(workflow, "Train")
    assert "hvdcloud launch --yes --json" in launch["run"]
    # The nodes have gone before GitHub ends the launch, and after that there is time to look.
    assert hours * 60 < launch["timeout-minutes"] <= job["timeout-minutes"] - 30 < 360


def test_the_exit_code_of_launch_is_the_steps(workflow: dict[Any, Any], tmp_path: Path) -> None:
    (tmp_path / "hvdcloud").write_text("#!/bin/sh\necho '{}'\nexit 7\n")
    (tmp_path / "hvdcloud").chmod(0o755)
    assert "continue-on-error" not in step(workflow, "Train")
    assert bash(step(workflow, "Train")["run"], tmp_path, RESULT=str(tmp_path)).returncode == 7
    assert (tmp_path / "launch.json").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("fails", "called", "code"),
    [
        ((), ["down"], 0),
        (("1 down",), ["down", "stop", "pull", "down"], 0),
        (("1 down", "stop", "pull"), ["down", "stop", "pull", "down"], 0),
        (("1 down", "2 down"), ["down", "stop", "pull", "down", "down --force"], 0),
        (("1 down", "2 down", "down --force"), ["down", "stop", "pull", "down", "down --force"], 8),
    ],
)
def test_whatever_happened_nothing_is_left_billing(
    workflow: dict[Any, Any], tmp_path: Path, fails: tuple[str, ...], called: list[str], code: int
) -> None:
    """The step runs whatever happened before it, and it fails where something is left."""
    last = step(workflow, "Nothing is left billing")
    assert last["if"] == "always()"
    (tmp_path / "fails").write_text("".join(f"{each}\n" for each in fails))
    (tmp_path / "hvdcloud").write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/called\nnumber=$(grep -cx "$*" {tmp_path}/called)\n'
        f'! grep -qxe "$*" -e "$number $*" {tmp_path}/fails || exit 8\n'
    )
    (tmp_path / "hvdcloud").chmod(0o755)
    assert bash(last["run"], tmp_path).returncode == code
    assert (tmp_path / "called").read_text().splitlines() == called


def test_the_comment_says_what_came_of_it_and_what_it_cost(workflow: dict[Any, Any], tmp_path: Path) -> None:
    assert table(workflow, tmp_path, launched()) == {
        "result": "`succeeded`",
        "exit code": "`0`",
        "error": "-",
        "numbers": "`accuracy 0.992`",
        "run": f"`{RUN}`",
        "nodes": "`0`",
        "minutes": "`5.2`",
        "cost": "`$0.11`",
        "per hour": "`$1.5`",
        "at worst": "`$4.98`",
        "files": "`12`",
    }


def test_a_failed_job_is_told_and_none_of_its_words_is_markup(workflow: dict[Any, Any], tmp_path: Path) -> None:
    hostile = "boom ` | <img src=x> @everyone \n| a | b |\u202e"
    said = table(workflow, tmp_path, launched(reason=hostile, metrics={"loss|`": 0.5}))
    assert (said["result"], said["exit code"]) == ("`failed`", "`7`")
    assert said["numbers"] == "`loss   0.5`"
    # In a code span nothing is a mention, a link or HTML.
    assert said["error"].startswith("`boom     <img src=x> @everyone ")
    assert said["error"].count("`") == 2


@pytest.mark.parametrize("document", [None, "", '{"exit_code": 4, "result": null, "error": {"message": "no room"}}'])
def test_a_launch_without_a_result_has_a_comment_too(
    workflow: dict[Any, Any], tmp_path: Path, document: str | None
) -> None:
    said = table(workflow, tmp_path, document)
    assert said["result"] == "`no run`"
    assert (said["exit code"], said["error"]) == (("`4`", "`no room`") if document else ("`130`", "-"))
    assert said["at worst"] == "-"
