"""What a newcomer with an empty Google project types by the README, in front of stand-ins of all that is Google's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.terraform import missing, resources, stand_in
from tests.support.cloud import PROJECT, SETUP_ACCOUNT, Cloud, Earlier, running_cloud
from tests.support.harness import Project

pytestmark = [pytest.mark.engine, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


@pytest.fixture
def cloud(tmp_path: Path, earlier: Earlier, image: str) -> Iterator[Cloud]:
    folder = tmp_path / "cloud"
    folder.mkdir()
    with running_cloud(folder, earlier=earlier) as cloud:
        yield cloud


@pytest.fixture
def project(tmp_path: Path, cloud: Cloud) -> Project:
    """`hvdcloud init digits`, and nothing else."""
    project = Project(folder=tmp_path / "digits", state=tmp_path / "state", name="digits")
    project.folder.mkdir()
    project.environ |= {
        **cloud.environ,
        **stand_in(tmp_path / "google", compute=cloud.emulator.url, storage=cloud.storage.url),
        "HVDCLOUD_GOOGLE_ENDPOINT": cloud.emulator.url,
        # The one name that can't be as `setup` writes it: pkg.dev is Google's.
        "HVDCLOUD_IMAGE__REPOSITORY": f"{cloud.registry}/hvdcloud/digits",
    }
    project.hvdcloud("init")
    return project


@pytest.mark.nightly
def test_from_an_empty_project_to_a_run_and_back(cloud: Cloud, project: Project, tmp_path: Path) -> None:
    setup = project.hvdcloud("setup", "--yes", timeout=300)
    assert "google_storage_bucket.checkpoints: Creation complete" in setup.out
    allow_what_was_granted(cloud, tmp_path / "google")

    doctor = project.hvdcloud("doctor")
    assert re.search(r"checks in [\d.]+ s: \d+ passed", doctor.out)
    assert not re.search(r"^(✗|FAILED)", doctor.out, re.MULTILINE), doctor.out

    offers = project.hvdcloud("offers", "--hours", "2", "--json").json["result"]
    prices = [offer["dollars_per_hour"] for offer in offers["offers"] if offer["dollars_per_hour"] is not None]
    assert prices == sorted(prices)
    (mine, *_) = [offer for offer in offers["offers"] if offer["configured"] and offer["provisioning"] == "standard"]

    plan = project.hvdcloud("up", "--dry-run", "--json").json["result"]
    # This laptop comes from a private address, so its two nodes need no external ones, at half a cent each.
    assert plan["dollars_per_hour"] == pytest.approx(mine["dollars_per_hour"] - 2 * 0.005)

    launched = project.hvdcloud("launch", timeout=500)
    assert re.search(r"final: accuracy 0\.9\d", launched.out)
    assert re.search(r"^cost: \$0\.\d\d for 2 nodes, .* at \$\d\.\d\d/h$", launched.out, re.MULTILINE), launched.out
    assert re.search(r"^✓ digits trained: accuracy 0\.9\d+ · .* · 12 checkpoints → /", launched.out, re.MULTILINE)
    assert project.hvdcloud("list").out == "there is no cluster; nothing is running\n"
    assert [link for link in cloud.left() if "hvdcloud-mesh" not in link and "hvdcloud-iap" not in link] == []

    gone = project.hvdcloud("setup", "--destroy", "--yes", timeout=300)
    assert "left: gs://test-project-hvdcloud" in gone.out
    assert cloud.left() == []


def allow_what_was_granted(cloud: Cloud, google: Path) -> None:
    """The emulator has no IAM of its own: it gets what Terraform has granted."""
    found = resources(google)
    (role,) = found["google_project_iam_custom_role"].values()
    (binding,) = (each for each in found["google_project_iam_member"].values() if each["role"] == role["name"])
    assert binding["member"] == f"serviceAccount:{SETUP_ACCOUNT}"
    assert "digits-" in str(binding["condition"])
    instances = f"projects/{PROJECT}/zones/*/instances/digits-*"
    cloud.emulator.access.allow(SETUP_ACCOUNT, *role["permissions"], resource=instances)
