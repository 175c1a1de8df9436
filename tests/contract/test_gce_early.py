"""What `up` and `launch` learn of account and project before they build, from stand-ins of Google's APIs."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.checks import Check
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.file import load_config
from hvdcloud.console import Console
from hvdcloud.errors import CredentialsError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.early import GRACE_SECONDS, EarlyChecks
from hvdcloud.lifecycle.up import make_spec
from hvdcloud.providers.base import Platform
from tests.standins.compute import Emulator
from tests.standins.registry import free_port
from tests.support.gce_bench import A
from tests.support.harness import until

NODES = "nodes@test-project.iam.gserviceaccount.com"
ASKED = {
    "cloudbilling.projects.getBillingInfo",
    "serviceusage.services.batchGet",
    "cloudresourcemanager.projects.testIamPermissions",
    "iam.projects.serviceAccounts.testIamPermissions",
}


class WithoutStorage:
    """A platform whose buckets nothing stands in for here."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        return [check for check in self._platform.checks(spec) if check.name not in ("bucket", "node rights")]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def err() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def context(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, err: io.StringIO) -> Context:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(emulator.credentials_file(tmp_path / "key.json")))
    gce = {"project": "test-project", "zones": [A], "service_account": NODES}
    settings = {"name": "digits", "provider": "gce", "gce": {**gce, "ssh": {"source": "198.51.100.7/32"}}}
    (tmp_path / "hvdcloud.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("HVDCLOUD_GOOGLE_ENDPOINT", emulator.url)
    config = load_config(tmp_path / "hvdcloud.yaml", flags={}, environ={})
    context = Context(config, Console(err=err))
    context.__dict__["platform"] = WithoutStorage(providers.platform(config))
    return context


def ask(context: Context, *, nodes: bool = True) -> None:
    """Until all have answered, as they have in a command whose own questions take longer."""
    checks = EarlyChecks(context, make_spec(context), nodes=nodes)
    for _ in range(20):
        checks.finish()


def test_fine_is_silent_and_takes_four_questions(emulator: Emulator, context: Context, err: io.StringIO) -> None:
    ask(context)
    assert err.getvalue() == ""
    assert {entry.method for entry in emulator.log.entries()} == ASKED


def test_a_run_on_nodes_that_are_up_asks_nothing_of_the_project(emulator: Emulator, context: Context) -> None:
    ask(context, nodes=False)
    assert emulator.log.entries() == []


@pytest.mark.parametrize(
    ("lacking", "what", "hint"),
    [
        (
            "compute.instances.create",
            " permissions in test-project",
            "--role=roles/compute.instanceAdmin.v1",
        ),
        ("iam.serviceAccounts.actAs", f"may not make VMs that run as {NODES}", "--role=roles/iam.serviceAccountUser"),
    ],
)
def test_a_right_of_ones_own_that_is_missing_is_said_before_anything_is_made(
    emulator: Emulator, context: Context, err: io.StringIO, lacking: str, what: str, hint: str
) -> None:
    emulator.access.deny(emulator.keys.email, lacking)
    ask(context)
    assert f"{what}: " in err.getvalue()
    assert lacking in err.getvalue()
    assert hint in err.getvalue()
    assert err.getvalue().count("warning: ") == 1


@pytest.mark.engine
def test_a_registry_that_is_down_is_said_before_a_build_and_stops_nothing(context: Context, err: io.StringIO) -> None:
    image = context.config.image.model_copy(update={"repository": f"127.0.0.1:{free_port()}/lab/digits"})
    context.config = context.config.model_copy(update={"image": image})
    checks = EarlyChecks(context, make_spec(context), image=True)
    until(lambda: checks.finish() or err.getvalue(), seconds=20, what="the registry's answer")
    assert "connection refused" in err.getvalue()
    assert "check this machine's network and image.repository" in err.getvalue()
    assert err.getvalue().count("warning: ") == 1


def test_an_api_that_is_off_and_a_project_that_nobody_pays_for_are_refused(
    emulator: Emulator, context: Context
) -> None:
    emulator.google.off.add("storage.googleapis.com")
    with pytest.raises(CredentialsError, match=r"switched off in project test-project: storage\.googleapis\.com"):
        ask(context)
    emulator.google.billing = False
    with pytest.raises(CredentialsError, match="project test-project has no active billing account"):
        ask(context)


def test_a_service_that_takes_its_time_is_waited_for_half_a_second(emulator: Emulator, context: Context) -> None:
    emulator.google.off.add("storage.googleapis.com")
    emulator.faults.add({"hold": "before"}, method="cloudbilling.projects.getBillingInfo")
    checks = EarlyChecks(context, make_spec(context))
    assert emulator.faults.wait_held()
    began = time.monotonic()
    with pytest.raises(CredentialsError, match="switched off"):
        checks.finish()
    assert time.monotonic() - began < GRACE_SECONDS + 10
    emulator.faults.release()
