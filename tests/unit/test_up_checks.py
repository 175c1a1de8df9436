"""What `up`, `launch` and `run` find out before anything is built, sent or billed."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.cluster.model import ClusterObject, Node, NodeState, ObjectKind
from hvdcloud.console import Console
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.up import check_project, make_spec, up
from tests.support.configs import load_config
from tests.support.views import cluster


def context_of(folder: Path, **config: Any) -> tuple[Context, io.StringIO]:
    (folder / "hvdcloud.yaml").write_text(yaml.safe_dump({"name": "digits", **config}))
    err = io.StringIO()
    return Context(load_config(folder / "hvdcloud.yaml", flags={}, environ={}), Console(err=err)), err


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
    tmp_path: Path, state_root: Path, head: bool
) -> None:
    """One whose flex-start request waits has none; resize would refuse it."""
    nodes = (Node(name="digits-0", index=0, id="0", state=NodeState.RUNNING),) if head else ()
    waits = ClusterObject(kind=ObjectKind.REQUEST, name="hvdcloud-digits-a1b2c3")
    context, _ = context_of(tmp_path, provider="gce")
    context.__dict__["provider"] = SimpleNamespace(cluster=lambda name: cluster(nodes=nodes, other_objects=(waits,)))
    with pytest.raises(UsageError, match="cluster digits exists but is not whole") as caught:
        up(context, command="launch")
    otherwise = "hvdcloud down --name digits first, or take another --name"
    assert caught.value.hint == ("hvdcloud resize 2 --name digits brings them back; else " if head else "") + otherwise
