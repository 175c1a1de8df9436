"""What `up` and `launch` learn of account, project and places before they build, from stand-ins of Google's APIs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdcloud import providers
from hvdcloud.checks import Checked, Status, require, run_checks
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.errors import CapacityError, CredentialsError, ExitCode
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.up import make_spec, up
from tests.standins.compute import Emulator
from tests.standins.storage import running_server
from tests.support.configs import load_config
from tests.support.gce_bench import A

NODES = "nodes@test-project.iam.gserviceaccount.com"


@pytest.fixture
def config(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(emulator.credentials_file(tmp_path / "key.json")))
    monkeypatch.setenv("HVDCLOUD_GOOGLE_ENDPOINT", emulator.url)
    gpu = {"machine_type": "n1-standard-2", "gpu": {"type": "nvidia-tesla-t4", "count": 1}, "provisioning": "standard"}
    gce = {"project": "test-project", "zones": [A], "service_account": NODES, **gpu}
    settings = {"name": "digits", "provider": "gce", "gce": {**gce, "ssh": {"source": "198.51.100.7/32"}}}
    (tmp_path / "hvdcloud.yaml").write_text(yaml.safe_dump(settings))
    return load_config(tmp_path / "hvdcloud.yaml", flags={}, environ={"HVDCLOUD_GOOGLE_ENDPOINT": emulator.url})


def test_nothing_is_said_where_nothing_is_wrong_and_nothing_is_changed(emulator: Emulator, config: Config) -> None:
    said: list[str] = []
    checks = providers.platform(config).checks(make_spec(Context(config, Console(quiet=True))))
    # All but those of storage, for which nothing stands in here.
    require([check for check in checks if check.name != "bucket"], warn=said.append, seconds=60)
    assert said == []
    assert {entry.http for entry in emulator.log.entries()} == {"GET"}


def zones(config: Config, **gce: Any) -> Checked:
    """What `doctor` says of zones with other settings of `gce`."""
    config = config.model_copy(update={"gce": config.gce.model_copy(update=gce)})
    checks = providers.platform(config).checks(make_spec(Context(config, Console(quiet=True))))
    (found,) = run_checks([check for check in checks if check.name == "zones"], seconds=60)
    return found


def test_a_reservation_is_checked_to_fit_and_no_quota_is_asked_for(emulator: Emulator, config: Config) -> None:
    emulator.reserve("mine", zone=A, machine_type="n1-standard-2", count=2, gpus={"nvidia-tesla-t4": 1})
    found = zones(config, provisioning="reservation", reservation="mine")
    assert found.status is Status.OK
    assert found.message == f"reservation mine has room for 2 nodes in {A}, and takes no quota"
    assert {entry.method for entry in emulator.log.entries()} == {"compute.reservations.aggregatedList"}
    found = zones(config, provisioning="reservation", reservation="other")
    assert found.exit_code is ExitCode.USAGE


@pytest.fixture
def context(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A project whose image is at the registry, with a bucket."""
    image = "us-central1-docker.pkg.dev/test-project/hvdcloud/digits@sha256:" + "0" * 64
    monkeypatch.setattr("hvdcloud.lifecycle.up.find_image", lambda context: (image, True))
    monkeypatch.setattr("hvdcloud.lifecycle.up.build_checks", lambda config, platform: [])
    # A check that is late blocks nothing, and this machine may have other work for seconds.
    monkeypatch.setattr("hvdcloud.lifecycle.up.require", partial(require, seconds=600))
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    checkpoints = config.checkpoints.model_copy(update={"bucket": "gs://bucket/runs"})
    with running_server(tmp_path / "storage") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        with Context(config.model_copy(update={"checkpoints": checkpoints}), Console(quiet=True)) as context:
            yield context


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("create", "may not write objects to gs://bucket"),
        ("read", "may not read the objects of gs://bucket"),
        ("replace", "may not replace the records of runs in gs://bucket"),
    ],
)
def test_nodes_that_may_not_use_their_bucket_end_up_and_nothing_is_left(
    emulator: Emulator, context: Context, step: str, words: str
) -> None:
    refused = {"step": "bucket", "error": "403", "refused": step}
    emulator.faults.add({"fail_ready": refused}, instance="digits-1")
    with pytest.raises(CredentialsError) as ended:
        up(context, confirmed=True)
    assert ended.value.message == f"{NODES}, which node digits-1 runs as, {words}"
    assert f"gcloud storage buckets add-iam-policy-binding gs://bucket --member=serviceAccount:{NODES} " in (
        ended.value.hint
    )
    assert emulator.state.left() == []


def test_what_blocks_makes_nothing(emulator: Emulator, context: Context) -> None:
    emulator.set_quota("NVIDIA_T4_GPUS", 1, region="us-central1")
    with pytest.raises(CapacityError, match="NVIDIA_T4_GPUS 2 needed, 1 of 1 free"):
        up(context, confirmed=True)
    assert {entry.http for entry in emulator.log.entries()} == {"GET"}
