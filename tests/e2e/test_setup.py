"""`hvdcloud setup`: a project in Google's cloud, made by the real Terraform with a stand-in of Google's provider."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.standins.compute import Emulator
from tests.standins.storage import StorageServer, running_server
from tests.standins.terraform import disable, fail, heal, missing, resources, stand_in
from tests.support.configs import load_config
from tests.support.gce_bench import Bench
from tests.support.harness import Project, Screen
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

KEPT = (
    f"left: gs://{LAB}-hvdcloud, billed for what it holds, the project's APIs and a role, which cost nothing\n"
    f"  deleted by hand with: gcloud storage rm --recursive gs://{LAB}-hvdcloud\n"
)


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
    def resources(self) -> dict[str, Any]:
        return resources(self.cloud)

    def object(self, name: str, data: bytes) -> None:
        """Put something into the bucket."""
        from hvdcloud.storage.open import open_bucket

        open_bucket(f"gs://{LAB}-hvdcloud", endpoint=self.storage.url).write(name, data)

    def cluster(self, name: str) -> None:
        """Another user's cluster of one VM."""
        bench = Bench(self.emulator)
        bench.create(bench.spec(nodes=1, name=name))

    def setup(self, *args: str, expect: int = 0) -> Any:
        return self.project.hvdcloud("setup", *args, expect=expect, timeout=300)


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
    assert "google_compute_network.hvdcloud will be created" in planned.out
    assert "google_storage_bucket.checkpoints will be created" in planned.out
    assert planned.out.endswith("nothing was changed; next: hvdcloud setup\n")
    assert "\x1b" not in planned.out
    assert lab.resources == {}
    assert lab.file.read_text() == before

    done = lab.setup("--yes")
    assert "google_storage_bucket.checkpoints: Creation complete" in done.out
    assert "+ checkpoints.bucket: gs://test-project-hvdcloud/digits" in done.out
    assert lab.keys == KEYS
    assert set(lab.resources) >= {"google_compute_network", "google_storage_bucket", "google_service_account"}
    # What init's file says beside that is still there, comments and all.
    assert [line for line in before.splitlines() if line not in lab.file.read_text().splitlines()] == [
        "provider: local                    # local: containers on this machine · gce: Compute Engine"
    ]
    config = load_config(lab.file, environ={})
    assert (config.provider, config.gce.network, config.gce.subnetwork) == ("gce", NETWORK, SUBNETWORK)
    # The cluster commands work from there: nothing more has to be typed.
    assert lab.project.hvdcloud("list").out == "there is no cluster; nothing is running\n"

    text, state = lab.file.read_text(), lab.resources
    assert "No changes." in lab.setup("--yes").out
    assert (lab.file.read_text(), lab.resources) == (text, state)
    assert "project test-project is set up" in lab.setup("--plan-only").out

    folder = lab.project.state / "_setup" / LAB
    for each in (folder, folder.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    # A cluster may be called setup, and none may be called _setup, the name of the folder.
    lab.project.hvdcloud("down", "--name", "_setup", expect=2)

    lab.file.write_text("name: digits  # mine\n")  # Keys that were lost are written again.
    result = lab.setup("--yes", "--json").json["result"]
    assert result["outputs"]["network"] == NETWORK
    assert {change["key"] for change in result["keys"]} == {".".join(key) for key in KEYS}
    assert lab.keys == KEYS
    assert lab.file.read_text().startswith("name: digits  # mine\n")


@pytest.mark.nightly
def test_the_bucket_is_never_replaced_and_outlives_destroy_and_another_setup(lab: Lab) -> None:
    lab.setup("--yes")
    lab.object("digits/run/model.pt", b"x" * 1000)
    before = lab.resources
    refused = lab.setup("--yes", "--bucket", "another", expect=2)
    assert "google_storage_bucket.checkpoints has lifecycle.prevent_destroy set" in " ".join(refused.err.split())
    assert lab.resources == before

    planned = lab.setup("--destroy", "--plan-only")
    assert planned.out.endswith(KEPT)
    assert lab.resources == before
    gone = lab.setup("--destroy", "--yes")
    assert gone.out.endswith(KEPT)
    # Nobody can make a deleted role's name again for 37 days.
    stays = {"google_storage_bucket", "google_project_service", "google_project_iam_custom_role"}
    assert lab.resources == {kind: before[kind] for kind in stays}
    assert lab.emulator.state.left() == []
    assert lab.keys == KEYS

    again = lab.setup("--destroy", "--yes", "--json").json["result"]
    assert (again["deleted"], again["bucket"]) == ([], f"gs://{LAB}-hvdcloud")

    lab.setup("--yes")
    assert lab.resources == before
    assert lab.keys == KEYS


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
    failed = lab.setup("--yes", expect=2)
    assert "Required 'compute.subnetworks.create' permission" in failed.err
    assert "error: terraform apply ended with exit code 1; what it says is above" in failed.err
    assert "hvdcloud setup again: it continues from there" in failed.err
    assert "google_compute_network" in lab.resources
    assert lab.file.read_text() == text
    heal(lab.cloud)
    done = lab.setup("--yes")
    assert "google_compute_network.hvdcloud: Creating" not in done.out
    assert "google_compute_subnetwork.hvdcloud: Creation complete" in done.out
    assert lab.keys == KEYS


@pytest.mark.nightly
def test_in_a_new_project_setup_enables_what_terraform_reads_with_and_waits_for_it(lab: Lab) -> None:
    lab.emulator.google.off = {"cloudresourcemanager.googleapis.com", "iam.googleapis.com"}
    disable(lab.cloud, 2)  # Terraform's first plan, and the question whether it fails because of an API.
    assert "enabling the first APIs" not in lab.setup("--plan-only", expect=2).err
    disable(lab.cloud, 2)
    done = lab.setup("--yes")
    assert "enabling the first APIs of project test-project" in done.err
    assert "an API that was just enabled does not answer yet; again in 10 s" in done.err
    assert "cloudresourcemanager.googleapis.com" not in lab.emulator.google.off
    assert lab.keys == KEYS


@pytest.mark.nightly
def test_a_role_that_another_machine_made_is_taken_up(lab: Lab) -> None:
    lab.setup("--yes")
    role = "google_project_iam_custom_role.self_delete"
    state = lab.project.state / "_setup" / LAB
    forget = ["terraform", f"-chdir={state}", "state", "rm", role]
    subprocess.run(forget, env={**os.environ, **lab.project.environ}, check=True, capture_output=True)
    done = lab.setup("--yes")
    assert f"{role}: Import complete" in done.out
    assert "No changes." in lab.setup("--yes").out


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


@pytest.mark.nightly
def test_ctrl_c_waits_till_everything_that_was_made_is_written_down(lab: Lab, gate: Gate) -> None:
    with lab.project.started("setup", "--yes") as process:
        assert gate.asked.wait(60)
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does: to Terraform too.
        screen = Screen(process)
        screen.wait_for("Interrupt received.")
        gate.open.set()
        screen.end()
    assert process.returncode == 130, screen.text
    assert "; hvdcloud setup continues from there" in screen.text
    bucket = lab.resources["google_storage_bucket"]
    lab.setup("--yes")  # Terraform's state has all that was made.
    assert lab.resources["google_storage_bucket"] == bucket
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
            screen.wait_for("Acquiring state lock")
            gate.open.set()
            screen.end()
    assert second.returncode == 0, screen.text
    assert lab.keys == KEYS
