"""What `up`, `launch` and `run` find out before anything is built, sent or billed."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.checks import Check, Finding, failed, require
from hvdcloud.cluster.model import ClusterObject, ClusterSpec, Node, NodeState, ObjectKind
from hvdcloud.console import Console
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.lifecycle import up as lifecycle_up
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.up import check, check_project, make_spec, up
from tests.support.configs import load_config
from tests.support.views import cluster


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
    # A check that is late blocks nothing, and this machine may have other work for seconds.
    monkeypatch.setattr(lifecycle_up, "require", partial(require, seconds=600))

    def ask(*checks: Check) -> str:
        context, err = context_of(tmp_path)
        context.__dict__["platform"] = Asked(checks)
        check(context)
        return err.getvalue()

    return ask


def says(finding: Finding) -> Callable[[], Finding]:
    return lambda: finding


LACKS = failed("ann lacks 1 of 29 permissions in p: x", hint="the owner can: y", error=CredentialsError)


def test_a_right_that_seems_to_be_missing_is_warned_of_once(ask: Callable[..., str]) -> None:
    said = ask(Check(name="permissions", run=says(LACKS), blocks=False))
    assert said.splitlines() == [f"warning: {LACKS.message}; {LACKS.hint}"]


@pytest.mark.parametrize(
    ("settings", "only_warn"),
    [
        ({"provider": "local"}, {"machine"}),
        ({"provider": "gce"}, set()),
        ({"provider": "ssh", "ssh": {"hosts": ["gpu1", "gpu2"]}}, set()),
    ],
)
def test_what_does_not_block_is_what_is_no_proof(tmp_path: Path, settings: dict[str, Any], only_warn: set[str]) -> None:
    context, _ = context_of(tmp_path, **settings)
    checks = providers.platform(context.config).checks(make_spec(context))
    assert {check.name for check in checks if not check.blocks} == only_warn


def test_a_missing_script_is_found_before_anything_else(tmp_path: Path) -> None:
    context, err = context_of(tmp_path)
    with pytest.raises(UsageError, match=r"run\.command starts train\.py, which is not in "):
        check_project(context)
    with pytest.raises(UsageError, match=r"`python other\.py --epochs 2` starts other\.py, which is not in "):
        check_project(context, ("python", "other.py", "--epochs", "2"))
    check_project(context, ("sh", "-c", "true"))
    assert err.getvalue() == ""


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


@pytest.mark.parametrize("head", [False, True])
def test_only_a_cluster_with_a_head_is_said_to_come_back_by_resize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bool
) -> None:
    """One whose flex-start request waits has none; resize would refuse it."""
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    nodes = (Node(name="digits-0", index=0, id="0", state=NodeState.RUNNING),) if head else ()
    waits = ClusterObject(kind=ObjectKind.REQUEST, name="hvdcloud-digits-a1b2c3")
    context, _ = context_of(tmp_path, provider="gce")
    context.__dict__["provider"] = SimpleNamespace(cluster=lambda name: cluster(nodes=nodes, other_objects=(waits,)))
    with pytest.raises(UsageError, match="cluster digits exists but is not whole") as caught:
        up(context, command="launch")
    otherwise = "hvdcloud down --name digits first, or take another --name"
    assert caught.value.hint == ("hvdcloud resize 2 --name digits brings them back; else " if head else "") + otherwise
