"""What `up`, `launch` and `run` find out before anything is built, sent or billed."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.checks import Check, Finding, Severity, failed, fine, require, warning
from hvdcloud.cluster.confirm_cost import Consent
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.file import load_config
from hvdcloud.console import Console
from hvdcloud.doctor import machine
from hvdcloud.errors import CapacityError, CredentialsError, UsageError
from hvdcloud.lifecycle import up as lifecycle_up
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.up import check_and_confirm, check_project, make_spec


@dataclass
class Asked:
    """A platform with these checks, for which nothing is built or made."""

    found: Sequence[Check]
    costs_money = False
    needs_registry = True
    processor = None

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        return self.found

    def machines(self) -> str | None:
        return None

    def device_mismatch(self) -> Finding | None:
        return None


def context_of(folder: Path, **config: Any) -> tuple[Context, io.StringIO]:
    (folder / "hvdcloud.yaml").write_text(yaml.safe_dump({"name": "digits", **config}))
    err = io.StringIO()
    return Context(load_config(folder / "hvdcloud.yaml", flags={}, environ={}), Console(err=err)), err


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs checks as `up` does; returns what it says."""
    monkeypatch.setattr(machine, "build_checks", lambda config, platform: [])
    # A check that is late blocks nothing, and this machine may have other work for seconds.
    monkeypatch.setattr(lifecycle_up, "require", partial(require, seconds=600))

    def ask(*checks: Check) -> str:
        context, err = context_of(tmp_path)
        context.__dict__["platform"] = Asked(checks)
        consent = Consent()
        check_and_confirm(context, consent)
        check_and_confirm(context, consent)
        return err.getvalue()

    return ask


def says(finding: Finding) -> Callable[[], Finding]:
    return lambda: finding


LACKS = failed("ann lacks 1 of 29 permissions in p: x", hint="the owner can: y", error=CredentialsError)


def test_a_right_that_seems_to_be_missing_is_warned_of_once(ask: Callable[..., str]) -> None:
    said = ask(Check(name="permissions", run=says(LACKS), severity=Severity.WARNS))
    assert said.splitlines() == [f"warning: {LACKS.message}; {LACKS.hint}"]


def test_a_quota_that_is_too_small_ends_up_before_anything_is_built(ask: Callable[..., str]) -> None:
    with pytest.raises(CapacityError, match="no quota"):
        ask(Check(name="quota", run=says(failed("no quota for 2 nodes", hint="ask for more", error=CapacityError))))


def test_fine_is_silent(ask: Callable[..., str]) -> None:
    assert ask(Check(name="bucket", run=says(fine("it is there")))) == ""


def test_too_many_nodes_for_this_machine_are_warned_of(ask: Callable[..., str]) -> None:
    crowded = warning("64 nodes share 2 cores", hint="--nodes 2")
    assert ask(Check(name="machine", run=says(crowded))) == "warning: 64 nodes share 2 cores; --nodes 2\n"


@pytest.mark.parametrize(
    ("settings", "only_warn"),
    [
        ({"provider": "local"}, {"machine"}),
        ({"provider": "gce", "gce": {"service_account": "nodes@p"}}, {"permissions", "service account", "firewall"}),
        # That VMs would run as the project's default account is the configuration's own: no doubt about it.
        ({"provider": "gce"}, {"permissions", "firewall"}),
        ({"provider": "ssh", "ssh": {"hosts": ["gpu1", "gpu2"]}}, set()),
    ],
)
def test_what_does_not_block_is_what_is_no_proof(tmp_path: Path, settings: dict[str, Any], only_warn: set[str]) -> None:
    context, _ = context_of(tmp_path, **settings)
    checks = providers.platform(context.config).checks(make_spec(context))
    assert {check.name for check in checks if check.severity is Severity.WARNS} == only_warn


MISSING = "run.command starts train.py, which is not in {}; correct run.command in hvdcloud.yaml, or write the file"


def test_a_missing_script_is_found_before_anything_else(tmp_path: Path) -> None:
    context, err = context_of(tmp_path)
    with pytest.raises(UsageError, match=r"run\.command starts train\.py, which is not in "):
        check_project(context)
    with pytest.raises(UsageError, match=r"`python other\.py --epochs 2` starts other\.py, which is not in "):
        check_project(context, ("python", "other.py", "--epochs", "2"))
    check_project(context, ("sh", "-c", "true"))
    assert err.getvalue() == ""


def test_a_script_with_windows_line_ends_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    context, _ = context_of(tmp_path, run={"command": "./train.sh"})
    (tmp_path / "train.sh").write_bytes(b"#!/bin/bash\r\npython train.py\r\n")
    with pytest.raises(UsageError, match=r"^\./train\.sh has the line ends of Windows \(CRLF\)") as refused:
        check_project(context)
    assert refused.value.hint.startswith("sed -i 's/\\r$//' ./train.sh")


def test_a_missing_secret_is_found_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    context, _ = context_of(tmp_path, run={"command": "true", "secrets": ["WANDB_API_KEY"]})
    with pytest.raises(UsageError, match="WANDB_API_KEY not set in this environment"):
        check_project(context)
    monkeypatch.setenv("WANDB_API_KEY", "x")
    check_project(context)


@pytest.mark.parametrize("value", ["/opt/x:$PATH", "${PATH}:/opt/x", "$HOME/bin:$PATH"])
def test_a_value_that_would_lose_the_path_of_the_system_is_refused(tmp_path: Path, value: str) -> None:
    context, _ = context_of(tmp_path, run={"command": "true", "env": {"PATH": value}})
    with pytest.raises(UsageError, match=r"run\.env\.PATH: \$PATH in it is not expanded; a value is text") as caught:
        check_project(context)
    assert caught.value.hint == "in run.command it is expanded: PATH=…$PATH… python train.py"


def test_a_variable_in_a_value_is_said_not_to_be_expanded_once(tmp_path: Path) -> None:
    context, err = context_of(
        tmp_path, run={"command": "true", "env": {"A": "pa$$", "DATA": "${HOME}/s3cret", "N": "$1"}}
    )
    check_project(context, quiet=True)
    assert err.getvalue() == ""
    check_project(context)
    assert err.getvalue() == (
        "warning: run.env.DATA: $HOME in it is not expanded; a value is text; in run.command it is expanded: "
        "DATA=…$HOME… python train.py\n"
    )


def test_up_only_warns_of_them_since_another_command_may_run(tmp_path: Path) -> None:
    context, err = context_of(tmp_path)
    check_project(context, begins=False)
    assert err.getvalue() == f"warning: {MISSING.format(tmp_path)}\n"
