"""What `up` and `launch` learn of account, project and places before they build, from stand-ins of Google's APIs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.checks import require
from hvdcloud.config.file import load_config
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.doctor.machine import build_checks
from hvdcloud.errors import CapacityError, CredentialsError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.up import make_spec
from tests.standins.compute import Emulator
from tests.standins.registry import free_port
from tests.support.gce_bench import A

NODES = "nodes@test-project.iam.gserviceaccount.com"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def config(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(emulator.credentials_file(tmp_path / "key.json")))
    monkeypatch.setenv("HVDCLOUD_GOOGLE_ENDPOINT", emulator.url)
    gpu = {"machine_type": "n1-standard-2", "gpu": {"type": "nvidia-tesla-t4", "count": 1}, "spot": "none"}
    gce = {"project": "test-project", "zones": [A], "service_account": NODES, **gpu}
    settings = {"name": "digits", "provider": "gce", "gce": {**gce, "ssh": {"source": "198.51.100.7/32"}}}
    (tmp_path / "hvdcloud.yaml").write_text(yaml.safe_dump(settings))
    return load_config(tmp_path / "hvdcloud.yaml", flags={}, environ={"HVDCLOUD_GOOGLE_ENDPOINT": emulator.url})


def ask(config: Config) -> list[str]:
    """The warnings of all checks but those of storage, for which nothing stands in here."""
    said: list[str] = []
    checks = providers.platform(config).checks(make_spec(Context(config, Console(quiet=True))))
    require([check for check in checks if check.name != "bucket"], warn=said.append, seconds=60)
    return said


def test_nothing_is_said_where_nothing_is_wrong_and_nothing_is_changed(emulator: Emulator, config: Config) -> None:
    assert [text for text in ask(config) if "ends 2027-08-01" not in text] == []
    changed = [each.method for each in emulator.log.entries() if each.http != "GET"]
    assert [method for method in changed if not method.endswith("testIamPermissions")] == []


@pytest.mark.parametrize(
    ("lacking", "what", "hint"),
    [
        (
            "compute.instances.create",
            " permissions in test-project",
            "--role=roles/compute.instanceAdmin.v1",
        ),
        ("iam.serviceAccounts.actAs", f"may not make VMs that run as {NODES}", "--role=roles/iam.serviceAccountUser"),
        ("compute.firewalls.create", "`up` has to add firewall rules", "--role=roles/compute.securityAdmin"),
    ],
)
def test_a_right_of_ones_own_that_is_missing_is_warned_of(
    emulator: Emulator, config: Config, lacking: str, what: str, hint: str
) -> None:
    emulator.access.deny(emulator.keys.email, lacking)
    (said,) = [text for text in ask(config) if lacking in text]
    assert what in said
    assert hint in said


def test_a_quota_that_is_too_small_is_refused(emulator: Emulator, config: Config) -> None:
    emulator.set_quota("NVIDIA_T4_GPUS", 1, region="us-central1")
    with pytest.raises(CapacityError, match="NVIDIA_T4_GPUS 2 needed, 1 of 1 free"):
        ask(config)


def test_an_api_that_is_off_and_a_project_that_nobody_pays_for_are_refused(emulator: Emulator, config: Config) -> None:
    emulator.google.off.add("storage.googleapis.com")
    with pytest.raises(CredentialsError, match=r"switched off in project test-project: storage\.googleapis\.com"):
        ask(config)
    emulator.google.billing = False
    with pytest.raises(CredentialsError, match="project test-project has no active billing account"):
        ask(config)


@pytest.mark.parametrize("method", ["cloudbilling.projects.getBillingInfo", "compute.images.getFromFamily"])
def test_a_service_that_fails_stops_nothing(emulator: Emulator, config: Config, method: str) -> None:
    emulator.faults.add({"status": 503}, method=method, times=99)
    assert [text for text in ask(config) if text.startswith("check ")]


@pytest.mark.engine
def test_a_registry_that_is_down_is_said_before_a_build_and_stops_nothing(config: Config) -> None:
    image = config.image.model_copy(update={"repository": f"127.0.0.1:{free_port()}/lab/digits"})
    config = config.model_copy(update={"image": image})
    said: list[str] = []
    require([*build_checks(config, providers.platform(config))], warn=said.append, seconds=60)
    (refused,) = [text for text in said if "connection refused" in text]
    assert "check this machine's network and image.repository" in refused
