"""What is found before anything is built, sent or billed: which checks, how long they may take, what they raise."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.checks import Check, Finding, failed, fine, warning
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.file import load_config
from hvdcloud.console import Console
from hvdcloud.errors import CredentialsError, NodeError, UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.early import GRACE_SECONDS, EarlyChecks, check_project
from hvdcloud.lifecycle.up import make_spec


@dataclass
class Asked:
    """A platform with these checks."""

    found: Sequence[Check]
    specs: list[ClusterSpec] = field(default_factory=list)

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        self.specs.append(spec)
        return self.found


def context_of(folder: Path, **config: Any) -> tuple[Context, io.StringIO]:
    (folder / "hvdcloud.yaml").write_text(yaml.safe_dump({"name": "digits", **config}))
    err = io.StringIO()
    return Context(load_config(folder / "hvdcloud.yaml", flags={}, environ={}), Console(err=err)), err


def early(folder: Path, *checks: Check, nodes: bool = True) -> tuple[EarlyChecks, io.StringIO]:
    context, err = context_of(folder)
    context.__dict__["platform"] = Asked(checks)
    return EarlyChecks(context, make_spec(context), nodes=nodes), err


def never() -> Finding:
    raise AssertionError("not asked")


def says(finding: Finding) -> Callable[[], Finding]:
    return lambda: finding


NO_LOGIN = failed("there are no Google credentials", hint="log in", error=CredentialsError)
CROWDED = warning("64 nodes share 2 cores", hint="--nodes 2")


def test_the_first_failure_is_raised_as_what_it_is(tmp_path: Path) -> None:
    checks = (
        Check(name="credentials", run=says(NO_LOGIN), early=True),
        Check(name="bucket", run=never, needs=("credentials",), early=True),
        Check(name="quota", run=never),
    )
    with pytest.raises(CredentialsError, match="there are no Google credentials") as raised:
        early(tmp_path, *checks)[0].finish()
    assert raised.value.hint == "log in"


def test_a_check_does_not_wait_for_one_that_is_not_asked_early(tmp_path: Path) -> None:
    no_room = failed("no engine", hint="start it", error=NodeError)
    with pytest.raises(NodeError, match="no engine"):
        early(tmp_path, Check(name="machine", run=says(no_room), needs=("engine",), early=True))[0].finish()


def test_what_has_no_answer_yet_is_waited_for_half_a_second_and_looked_at_later(tmp_path: Path) -> None:
    answered = threading.Event()

    def slow() -> Finding:
        answered.wait(60)
        return NO_LOGIN

    checks, _ = early(tmp_path, Check(name="bucket", run=slow, early=True))
    began = time.monotonic()
    checks.finish()
    assert GRACE_SECONDS <= time.monotonic() - began < GRACE_SECONDS + 20
    answered.set()
    with pytest.raises(CredentialsError):
        checks.finish()


def test_an_answer_counts_although_another_check_has_none(tmp_path: Path) -> None:
    answered = threading.Event()

    def slow() -> Finding:
        answered.wait(60)
        return fine("")

    checks, _ = early(
        tmp_path, Check(name="billing", run=slow, early=True), Check(name="bucket", run=says(NO_LOGIN), early=True)
    )
    with pytest.raises(CredentialsError, match="there are no Google credentials"):
        checks.finish()
    answered.set()


LACKS = failed("ann lacks 1 of 29 permissions in p: x", hint="the owner can: y", error=CredentialsError)
OFF = failed("switched off in project p: compute.googleapis.com", hint="gcloud services enable", error=CredentialsError)
SILENT = failed("Cloud Billing does not answer", hint="try again", error=NodeError)


@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize("name", ["permissions", "service account"])
def test_a_right_that_seems_to_be_missing_is_warned_of_once_where_nodes_are_made(
    tmp_path: Path, name: str, nodes: bool
) -> None:
    checks, err = early(tmp_path, Check(name=name, run=says(LACKS), early=True), nodes=nodes)
    checks.finish()
    checks.finish()
    assert err.getvalue() == f"warning: {LACKS.message}; {LACKS.hint}\n" * nodes


@pytest.mark.parametrize("name", ["billing", "APIs"])
def test_a_project_in_which_no_vm_can_be_made_is_refused_at_once(tmp_path: Path, name: str) -> None:
    rights = Check(name="permissions", run=says(LACKS), early=True)
    checks, err = early(tmp_path, rights, Check(name=name, run=says(OFF), early=True))
    with pytest.raises(CredentialsError, match="switched off in project p"):
        checks.finish()
    assert err.getvalue() == ""
    early(tmp_path, Check(name=name, run=never, early=True), nodes=False)[0].finish()


@pytest.mark.parametrize("name", ["billing", "APIs", "permissions", "service account"])
def test_a_service_that_only_checks_need_stops_nothing_when_it_does_not_answer(tmp_path: Path, name: str) -> None:
    checks, err = early(tmp_path, Check(name=name, run=says(SILENT), early=True))
    checks.finish()
    assert err.getvalue() == ""


def test_a_bug_in_a_check_ends_no_command(tmp_path: Path) -> None:
    early(tmp_path, Check(name="bucket", run=never, early=True))[0].finish()


@pytest.mark.parametrize(("nodes", "said"), [(True, "warning: 64 nodes share 2 cores; --nodes 2\n"), (False, "")])
def test_too_many_nodes_for_this_machine_are_warned_of_where_they_are_made(
    tmp_path: Path, nodes: bool, said: str
) -> None:
    room = Check(name="machine", run=says(CROWDED), early=True)
    bucket = Check(name="bucket", run=says(warning("soft delete", hint="-")), early=True)
    checks, err = early(tmp_path, room, bucket, nodes=nodes)
    checks.finish()
    checks.finish()
    assert err.getvalue() == said


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        ("local", {"machine", "bucket"}),
        ("gce", {"credentials", "billing", "APIs", "permissions", "service account", "node rights", "bucket"}),
    ],
)
def test_what_is_asked_of_each_platform(tmp_path: Path, provider: str, names: set[str]) -> None:
    context, _ = context_of(tmp_path, provider=provider)
    asked = providers.platform(context.config).checks(make_spec(context))
    assert {check.name for check in asked if check.early} == names


MISSING = "run.command starts train.py, which is not in {}; correct run.command in hvdcloud.yaml, or write the file"


def test_a_missing_script_is_found_before_anything_else(tmp_path: Path) -> None:
    context, err = context_of(tmp_path)
    with pytest.raises(UsageError, match=r"run\.command starts train\.py, which is not in "):
        check_project(context, ())
    with pytest.raises(UsageError, match=r"`python other\.py --epochs 2` starts other\.py, which is not in "):
        check_project(context, ("python", "other.py", "--epochs", "2"))
    check_project(context, ("sh", "-c", "true"))
    assert err.getvalue() == ""


def test_a_script_with_windows_line_ends_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    context, _ = context_of(tmp_path, run={"command": "./train.sh"})
    (tmp_path / "train.sh").write_bytes(b"#!/bin/bash\r\npython train.py\r\n")
    with pytest.raises(UsageError, match=r"^\./train\.sh has the line ends of Windows \(CRLF\)") as refused:
        check_project(context, ())
    assert refused.value.hint.startswith("sed -i 's/\\r$//' ./train.sh")


def test_a_missing_secret_is_found_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    context, _ = context_of(tmp_path, run={"command": "true", "secrets": ["WANDB_API_KEY"]})
    with pytest.raises(UsageError, match="WANDB_API_KEY not set in this environment"):
        check_project(context, ())
    monkeypatch.setenv("WANDB_API_KEY", "x")
    check_project(context, ())


@pytest.mark.parametrize("value", ["/opt/x:$PATH", "${PATH}:/opt/x", "$HOME/bin:$PATH"])
def test_a_value_that_would_lose_the_path_of_the_system_is_refused(tmp_path: Path, value: str) -> None:
    context, _ = context_of(tmp_path, run={"command": "true", "env": {"PATH": value}})
    with pytest.raises(UsageError, match=r"run\.env\.PATH: \$PATH in it is not expanded; a value is text") as caught:
        check_project(context, ())
    assert caught.value.hint == "in run.command it is expanded: PATH=…$PATH… python train.py"


def test_a_variable_in_a_value_is_said_not_to_be_expanded_once(tmp_path: Path) -> None:
    context, err = context_of(
        tmp_path, run={"command": "true", "env": {"A": "pa$$", "DATA": "${HOME}/s3cret", "N": "$1"}}
    )
    check_project(context, (), first=True)
    assert err.getvalue() == ""
    check_project(context, ())
    assert err.getvalue() == (
        "warning: run.env.DATA: $HOME in it is not expanded; a value is text; in run.command it is expanded: "
        "DATA=…$HOME… python train.py\n"
    )


def test_up_only_warns_of_them_since_another_command_may_run(tmp_path: Path) -> None:
    context, err = context_of(tmp_path)
    check_project(context, (), only_warn=True)
    assert err.getvalue() == f"warning: {MISSING.format(tmp_path)}\n"


def test_fine_is_silent(tmp_path: Path) -> None:
    checks, err = early(tmp_path, Check(name="bucket", run=says(fine("it is there")), early=True))
    checks.finish()
    assert err.getvalue() == ""
