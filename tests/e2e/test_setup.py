"""`hvdcloud setup`: a project in Google's cloud, made by the real Terraform with a stand-in of Google's provider."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from hvdcloud.cluster.journal import Journal
from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.file import load_config
from hvdcloud.config.gce import GceConfig, SshConfig
from hvdcloud.config.model import LimitsConfig
from hvdcloud.google.credentials import SCOPE
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.provider import GceProvider
from hvdcloud.remote.keys import new_key_pair
from tests.standins.compute import Emulator
from tests.standins.storage import StorageServer, running_server
from tests.standins.terraform import bucket_of_another, change, fail, heal, missing, resources, stand_in
from tests.support.harness import Project, Screen, until
from tests.support.http_server import Asked, Reply, answering

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

LAB = "test-project"
NETWORK = f"https://www.googleapis.com/compute/v1/projects/{LAB}/global/networks/hvdcloud"
SUBNETWORK = "hvdcloud"
KEYS = {
    ("provider",): "gce",
    ("gce", "project"): LAB,
    ("gce", "network"): NETWORK,
    ("gce", "subnetwork"): SUBNETWORK,
    ("gce", "service_account"): f"hvdcloud@{LAB}.iam.gserviceaccount.com",
    ("image", "repository"): f"us-central1-docker.pkg.dev/{LAB}/hvdcloud/digits",
    ("checkpoints", "bucket"): f"gs://{LAB}-hvdcloud/digits",
}


@dataclass
class Lab:
    """A person with an empty project in Google's cloud, and `hvdcloud init` done."""

    project: Project
    cloud: Path
    emulator: Emulator
    storage: StorageServer

    @property
    def file(self) -> Path:
        return self.project.folder / "hvdcloud.yaml"

    @property
    def keys(self) -> dict[tuple[str, ...], Any]:
        """What hvdcloud.yaml says for the keys that `setup` writes."""
        tree = yaml.safe_load(self.file.read_text())

        def at(key: tuple[str, ...]) -> Any:
            found = tree
            for part in key:
                found = (found or {}).get(part)
            return found

        return {key: at(key) for key in KEYS}

    @property
    def gce(self) -> dict[str, Any]:
        """What hvdcloud.yaml says of Compute Engine."""
        found: dict[str, Any] = yaml.safe_load(self.file.read_text())["gce"]
        return found

    @property
    def state_file(self) -> Path:
        return self.project.state / "_setup" / LAB / "terraform.tfstate"

    @property
    def written_down(self) -> set[str]:
        """The types of what Terraform's state knows of."""
        with contextlib.suppress(FileNotFoundError, ValueError):  # Not there yet, or half of it.
            return {each["type"] for each in json.loads(self.state_file.read_text())["resources"]}
        return set()

    @property
    def resources(self) -> dict[str, Any]:
        return resources(self.cloud)

    def object(self, name: str, data: bytes) -> None:
        """Put something into the bucket."""
        from hvdcloud.storage.open import open_bucket

        open_bucket(f"gs://{LAB}-hvdcloud", endpoint=self.storage.url).write(name, data)

    def cluster(self, name: str) -> None:
        """Another user's cluster of one VM."""
        from google.oauth2 import service_account

        info = self.emulator.keys.credentials(self.emulator.url)
        credentials = service_account.Credentials.from_service_account_info(info, scopes=[SCOPE])
        provider = GceProvider(
            GceConfig(zones=["us-central1-a"], service_account="default", ssh=SshConfig(source="198.51.100.7/32")),
            LimitsConfig(),
            client=lambda: ComputeClient(project=LAB, credentials=credentials, endpoint=self.emulator.url),
        )
        spec = ClusterSpec(
            name=name,
            id=secrets.token_hex(3),
            owner="somebody",
            nodes=1,
            image=f"us-central1-docker.pkg.dev/{LAB}/hvdcloud/t@sha256:{'0' * 64}",
            bucket="gs://bucket/t",
            authorized_key=new_key_pair("test").public,
            created=datetime.now(timezone.utc),
        )
        provider.create(provider.plan(spec), journal=Journal(self.cloud / "journal.jsonl"))

    def setup(self, *args: str, expect: int = 0) -> Any:
        return self.project.hvdcloud("setup", *args, expect=expect, timeout=60)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "storage").mkdir()
    project = Project(folder=tmp_path / "digits", state=tmp_path / "state", name="digits")
    project.folder.mkdir()
    project.hvdcloud("init")
    with Emulator(project=LAB) as emulator, running_server(tmp_path / "storage") as storage:
        project.environ.update(
            {
                **stand_in(tmp_path / "cloud", compute=emulator.url, storage=storage.url),
                "GOOGLE_APPLICATION_CREDENTIALS": str(emulator.credentials_file(tmp_path / "key.json")),
                "STORAGE_EMULATOR_HOST": storage.url,
                "HVDCLOUD_GOOGLE_ENDPOINT": emulator.url,
            }
        )
        yield Lab(project=project, cloud=tmp_path / "cloud", emulator=emulator, storage=storage)


def test_a_project_is_set_up_and_its_names_are_written_down(lab: Lab) -> None:
    before = lab.file.read_text()
    planned = lab.setup("--plan-only")
    assert "+ network hvdcloud" in planned.err
    assert "+ bucket gs://test-project-hvdcloud" in planned.err
    assert "+ checkpoints.bucket: gs://test-project-hvdcloud/digits" in planned.out
    assert lab.resources == {}
    assert lab.file.read_text() == before

    done = lab.setup("--yes")
    assert "created bucket gs://test-project-hvdcloud" in done.err
    assert lab.keys == KEYS
    assert set(lab.resources) >= {"google_compute_network", "google_storage_bucket", "google_service_account"}
    # What init's file says beside that is still there, comments and all.
    kept = [line for line in before.splitlines() if "repository:" not in line and "bucket:" not in line]
    assert [line for line in kept if line not in lab.file.read_text().splitlines()] == [
        "provider: local                    # local: containers on this machine · gce: Compute Engine"
    ]
    config = load_config(lab.file, environ={})
    assert (config.provider, config.gce.network, config.gce.subnetwork) == ("gce", NETWORK, SUBNETWORK)
    # The cluster commands work from there: nothing more has to be typed.
    assert lab.project.hvdcloud("list").out == "there is no cluster; nothing is running\n"

    # Only what was granted just now is young.
    granted = lab.project.state / "_setup" / LAB / "granted"
    os.utime(granted, (0, 0))

    text, state = lab.file.read_text(), lab.resources
    assert "nothing to do" in lab.setup().out  # No question is needed.
    assert (lab.file.read_text(), lab.resources) == (text, state)
    assert granted.stat().st_mtime == 0

    folder = lab.project.state / "_setup" / LAB
    for each in (folder, folder.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    # A cluster may be called setup, and none may be called _setup, the name of the folder.
    lab.project.hvdcloud("down", "--name", "_setup", expect=2)

    lab.file.write_text("name: digits  # mine\n")  # Keys that were lost are written again.
    result = lab.setup("--json").json["result"]
    assert result["outputs"]["network"] == NETWORK
    assert result["done"] == []
    assert {change["key"] for change in result["keys"]} == {".".join(key) for key in KEYS}
    assert lab.keys == KEYS
    assert lab.file.read_text().startswith("name: digits  # mine\n")


def test_what_was_changed_or_deleted_outside_is_restored(lab: Lab) -> None:
    lab.setup("--yes")
    change(lab.cloud, "google_compute_firewall", f"projects/{LAB}/global/firewalls/hvdcloud-iap")
    change(lab.cloud, "google_storage_bucket", f"{LAB}-hvdcloud", public_access_prevention="inherited")
    done = lab.setup("--yes")
    assert "+ firewall rule hvdcloud-iap" in done.err
    assert "~ bucket gs://test-project-hvdcloud (public_access_prevention; changed outside hvdcloud)" in done.err
    assert "created firewall rule hvdcloud-iap" in done.err
    assert "changed bucket gs://test-project-hvdcloud" in done.err
    (bucket,) = lab.resources["google_storage_bucket"].values()
    assert bucket["public_access_prevention"] == "enforced"


def test_the_users_own_variables_do_what_they_say(lab: Lab) -> None:
    bucket_of_another(lab.cloud, "theirs")
    grant = "storage.objectViewer on bucket theirs, if hvdcloud-data imagenet/train"

    def days() -> float:
        (bucket,) = lab.resources["google_storage_bucket"].values()
        return float(bucket["soft_delete_policy"][0]["retention_duration_seconds"]) / 86400

    def folders() -> list[str]:
        found = lab.resources["google_storage_bucket_iam_member"].values()
        return [each["condition"][0]["title"] for each in found if each["bucket"] == "theirs"]

    def members() -> list[str]:
        return [each["member"] for each in lab.resources["google_project_iam_member"].values()]

    lab.setup("--yes", "--region", "us-east1")
    assert days() == 7
    lab.project.write("hvdcloud.tfvars", 'data = ["gs://theirs/imagenet/train"]\n')
    planned = lab.setup("--plan-only")
    assert grant in planned.err
    lab.project.write("hvdcloud.tfvars", "soft_delete_days = 3\n")
    lab.setup("--yes", expect=2)

    own = 'data = ["gs://theirs/imagenet/train"]\nsoft_delete_days = 30\nnat = true\n'
    lab.project.write("hvdcloud.tfvars", own + 'operators = ["user:ann@example.com"]\ndelete_after_days = 90\n')
    lab.setup("--yes")
    for again in (False, True):
        if again:
            assert "nothing to do" in lab.setup().out
        assert lab.gce["service_account"] == KEYS[("gce", "service_account")]
        assert folders() == ["hvdcloud-data imagenet/train"]
        assert days() == 30
        assert "google_compute_router_nat" in lab.resources

    others = 'data = ["gs://theirs/cifar"]\nsoft_delete_days = 0\nself_delete = []\nproject = "another"\n'
    lab.project.write("hvdcloud.tfvars", others + 'operators = ["user:bob@example.com"]\n')
    done = lab.setup("--yes")
    assert "google_project_iam_custom_role" not in lab.resources
    assert folders() == ["hvdcloud-data cifar"]
    assert days() == 0
    assert "deleted NAT gateway hvdcloud" in done.err
    assert "google_compute_router_nat" not in lab.resources
    assert {member for member in members() if member.startswith("user:")} == {"user:bob@example.com"}
    (bucket,) = lab.resources["google_storage_bucket"].values()
    assert bucket["location"] == "US-EAST1"
    assert "Delete" not in str(bucket["lifecycle_rule"])

    gone = lab.setup("--destroy", "--yes")
    assert "storage.objectViewer on bucket theirs, if hvdcloud-data cifar" in gone.err
    assert "google_storage_bucket_iam_member" not in lab.resources


def test_nodes_may_be_in_every_region_of_the_continent_that_has_the_gpu(lab: Lab) -> None:
    lab.project.configure(gce={"machine_type": "a2-highgpu-2g"})
    planned = lab.setup("--plan-only")
    assert [line for line in planned.err.splitlines() if "subnetwork" in line] == [
        "  + subnetwork hvdcloud in us-central1",
        *(f"  + subnetwork hvdcloud in {region}" for region in ("us-east1", "us-west1", "us-west3", "us-west4")),
    ]
    lab.setup("--yes", "--region", "us-central1", "--region", "us-east1")
    before = lab.resources
    assert {each["region"] for each in before["google_compute_subnetwork"].values()} == {"us-central1", "us-east1"}
    assert lab.emulator.state.subnetworks["us-east1"]["hvdcloud"]["ipCidrRange"] == "10.10.16.0/20"
    assert lab.keys == KEYS
    assert "nothing to do" in lab.setup().out  # What was named stays.
    # The bucket stays where it is; a region that is no longer wanted goes.
    done = lab.setup("--yes", "--region", "us-west1", "--region", "us-central1")
    assert "created subnetwork hvdcloud in us-west1" in done.err
    assert "deleted subnetwork hvdcloud in us-east1" in done.err
    assert lab.resources["google_storage_bucket"] == before["google_storage_bucket"]
    assert lab.resources["google_artifact_registry_repository"] == before["google_artifact_registry_repository"]
    assert "subnetworks" not in lab.setup("--yes", "--destroy").out


def test_another_experiment_of_the_same_project_adds_only_its_own(lab: Lab) -> None:
    lab.setup("--yes")
    other = lab.project.folder / "other.yaml"
    other.write_text("name: words\n")
    done = lab.setup("--yes", "-c", "other.yaml", "--project", LAB)
    assert done.err.count("\n  + ") == 1
    assert "if hvdcloud-words" in done.err
    assert yaml.safe_load(other.read_text())["checkpoints"]["bucket"] == f"gs://{LAB}-hvdcloud/words"
    assert "hvdcloud-digits" in str(lab.resources["google_project_iam_member"])
    assert "hvdcloud-words" in str(lab.resources["google_project_iam_member"])


def test_a_bucket_with_checkpoints_is_never_replaced_and_outlives_destroy_and_another_setup(
    lab: Lab,
) -> None:
    lab.setup("--yes")
    lab.object("digits/run/model.pt", b"x" * 1000)
    before = lab.resources
    refused = lab.setup("--yes", "--region", "us-east1", expect=2)
    assert "bucket gs://test-project-hvdcloud would be deleted for a new one (location)" in refused.err
    assert "it holds 1 object" in refused.err
    assert lab.resources == before

    gone = lab.setup("--destroy", "--yes")
    assert "- network hvdcloud" in gone.err
    assert "= bucket gs://test-project-hvdcloud: it holds 1 object, 1.0 kB" in gone.err
    assert "left: bucket gs://test-project-hvdcloud: it holds 1 object, 1.0 kB" in gone.out
    assert "1.0 kB, less than $0.01 a month\n  deleted by hand with: gcloud storage rm --recursive gs://" in gone.out
    dead = "gce.network, gce.subnetwork, gce.service_account, image.repository"
    assert f"still names what is gone: {dead}" in gone.out
    assert set(lab.resources) == {"google_storage_bucket", "google_project_service"}
    assert lab.keys == KEYS

    again = lab.setup("--destroy", "--yes")
    assert "nothing" in again.out.splitlines()[0]
    assert "left: bucket gs://test-project-hvdcloud" in again.out

    back = lab.setup("--yes")
    assert "+ network hvdcloud" in back.err
    assert "bucket gs://test-project-hvdcloud\n" not in back.err
    assert lab.keys == KEYS


def test_destroy_takes_an_empty_bucket_along(lab: Lab) -> None:
    lab.setup("--yes")
    gone = lab.setup("--destroy", "--yes", "--json").json["result"]
    assert "google_storage_bucket" not in lab.resources
    assert set(lab.resources) == {"google_project_service"}
    assert "checkpoints.bucket" in gone["dead_keys"]
    assert [kept["delete_with"] for kept in gone["kept"]] == [""]
    assert lab.emulator.state.left() == []


def test_destroy_with_nothing_set_up(lab: Lab) -> None:
    assert "nothing to delete" in lab.setup("--destroy").out


def test_destroy_is_refused_while_there_are_clusters(lab: Lab) -> None:
    lab.setup("--yes")
    lab.cluster("words")
    before = lab.resources
    refused = lab.setup("--destroy", "--yes", expect=2)
    assert "error: project test-project still has 1 cluster: words" in refused.err
    assert "→ hvdcloud down --name words first" in refused.err
    assert lab.resources == before


def test_a_permission_that_is_missing_in_the_middle_and_then_going_on(lab: Lab) -> None:
    fail(lab.cloud, "google_compute_subnetwork")
    text = lab.file.read_text()
    failed = lab.setup("--yes", expect=3)
    assert (
        "error: cannot set up subnetwork hvdcloud in us-central1: Required 'compute.subnetworks.create' permission"
        in failed.err
    )
    assert "hvdcloud setup again: it continues from there" in failed.err
    assert "google_compute_network" in lab.resources
    assert lab.file.read_text() == text
    heal(lab.cloud)
    done = lab.setup("--yes")
    assert "+ network" not in done.err
    assert "+ subnetwork hvdcloud" in done.err
    assert lab.keys == KEYS


def test_what_was_set_up_from_elsewhere_is_not_touched(lab: Lab) -> None:
    """From another machine, or by hand: this one's Terraform does not know it."""
    lab.setup("--yes")
    before = lab.resources
    shutil.rmtree(lab.project.state)
    failed = lab.setup("--yes", "--json", expect=2)
    assert "was set up from another machine, or by hand" in failed.json["error"]["message"]
    assert "hvdcloud setup on that machine" in failed.json["error"]["hint"]
    assert lab.resources == before
    assert lab.keys == KEYS


def test_an_api_that_was_switched_on_only_now_is_waited_for(lab: Lab) -> None:
    message = "Compute Engine API has not been used in project 1 before or it is disabled., accessNotConfigured"
    fail(lab.cloud, "google_compute_network", message=message, times=1)
    done = lab.setup("--yes")
    assert "trying again in 2 s" in done.err
    assert lab.keys == KEYS


def test_credentials_that_are_missing(lab: Lab) -> None:
    lab.project.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(lab.cloud / "none.json")
    assert "no usable Google credentials" in lab.setup("--yes", expect=3).err


def test_without_a_terminal_nothing_is_done_unconfirmed(lab: Lab) -> None:
    text = lab.file.read_text()
    refused = lab.setup(expect=2)
    assert "there is no terminal to ask on" in refused.err
    assert "→ add --yes" in refused.err
    assert lab.resources == {}
    assert lab.file.read_text() == text


def test_without_terraform_it_says_where_to_get_it(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    lab.project.environ["PATH"] = str(tmp_path / "bin")
    refused = lab.setup("--yes", expect=2)
    assert "there is no terraform on PATH" in refused.err
    assert "https://developer.hashicorp.com/terraform/install" in refused.err


def test_without_the_file_it_says_how_to_get_one(lab: Lab) -> None:
    lab.file.unlink()
    assert "→ hvdcloud init" in lab.setup("--yes", "--name", "digits", expect=2).err
    assert lab.resources == {}


def test_a_file_that_cannot_be_edited_is_refused_before_anything_is_made(lab: Lab) -> None:
    lab.file.write_text("name: digits\nimage:\n  repository: &r host/a\n  base: *r\n")
    refused = lab.setup("--yes", expect=2)
    assert "image.repository belongs to an anchor" in refused.err
    assert "by hand" in refused.err
    assert lab.resources == {}


class Gate:
    """A stand-in of Cloud Storage in which no bucket can be made until it is opened."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.open = threading.Event()

    def answer(self, request: Asked) -> Reply:
        if request.method == "POST":
            self.asked.set()
            assert self.open.wait(60)
        return Reply({})


@pytest.fixture
def gate(lab: Lab) -> Iterator[Gate]:
    """Terraform's apply comes to a halt at the bucket."""
    gate = Gate()
    with answering(gate.answer) as url:
        lab.project.environ.update(stand_in(lab.cloud, storage=url))
        yield gate
        gate.open.set()


def test_ctrl_c_waits_till_everything_that_was_made_is_written_down(lab: Lab, gate: Gate) -> None:
    with lab.project.started("setup", "--yes") as process:
        assert gate.asked.wait(60)
        os.kill(process.pid, signal.SIGINT)
        screen = Screen(process)
        os.kill(process.pid, signal.SIGINT)  # An impatient person.
        gate.open.set()
        screen.end(within=30)
    assert process.returncode == 130, screen.text
    assert "; hvdcloud setup continues from there" in screen.text
    assert "google_storage_bucket" in lab.resources
    assert "adopting" not in lab.setup("--yes").err  # Terraform's state has all that was made.
    assert lab.keys == KEYS


def test_kill_9_leaves_terraform_to_end_and_the_next_setup_continues(lab: Lab, gate: Gate) -> None:
    with lab.project.started("setup", "--yes") as process:
        assert gate.asked.wait(60)
        refused = lab.setup("--yes", expect=2)  # Two at once are one too many.
        assert f"project test-project is being set up by `hvdcloud setup` (process {process.pid})" in refused.err
        process.kill()
        process.wait(timeout=40)
    with lab.project.started("setup", "--yes") as second:
        screen = Screen(second)
        screen.wait_for("the Terraform of a setup that was killed is still running")
        gate.open.set()
        screen.end(within=60)
    assert second.returncode == 0, screen.text
    assert "already" not in screen.text
    assert lab.keys == KEYS


@pytest.mark.parametrize("torn", [False, True])
def test_what_was_made_while_the_machine_died_is_taken_up(lab: Lab, gate: Gate, torn: bool) -> None:
    """Terraform dies too, and has not written down what Google was just making.

    Args:
        torn: it dies as it writes its state.
    """
    with lab.project.started("setup", "--yes") as process:
        assert gate.asked.wait(60)
        # The stand-in does one thing after the other, so nothing more is made before the gate opens.
        until(lambda: lab.written_down >= set(lab.resources), seconds=20, what="what was made before the bucket")
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        terraform = next(each for each in family if each.name() == "terraform")
        terraform.kill()
    until(
        lambda: not terraform.is_running() or terraform.status() == psutil.STATUS_ZOMBIE,
        seconds=10,
        what="the end of Terraform",
    )
    gate.open.set()
    until(lambda: "google_storage_bucket" in lab.resources, seconds=10, what="the bucket")
    for each in family:  # The provider waits for a Terraform that is gone.
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    if torn:
        lab.state_file.write_bytes(lab.state_file.read_bytes()[:1000])
    done = lab.setup("--yes")
    # It may have been torn without our help.
    assert not torn or "adopting network hvdcloud, which already exists" in done.err
    assert "adopting bucket gs://test-project-hvdcloud, which already exists" in done.err
    assert lab.keys == KEYS
