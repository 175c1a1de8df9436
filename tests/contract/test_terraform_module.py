"""terraform/: that it is well formed, and that it makes what it says it makes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.providers.gce.ops.node_rights import RECORDS
from hvdcloud.storage.open import open_bucket
from tests.standins.compute import Emulator
from tests.standins.conditions import holds
from tests.standins.storage.server import running_server
from tests.standins.terraform import MODULE, VENV, bucket_of_another, fail, heal, missing, resources
from tests.support.terraform import Workplace, workplace

NODES = "serviceAccount:hvdcloud@test-project.iam.gserviceaccount.com"
EVERYTHING = {
    "nat": "true",
    "other_regions": '{us-east1 = "10.10.16.0/20"}',
    "self_delete": '["digits", "digits-2"]',
    "operators": '["user:ada@example.com", "group:ci@example.com"]',
    "delete_after_days": "90",
    "data": '["gs://open-data", "gs://theirs/imagenet/train"]',
    "budget": '{billing_account = "01AB23-4C56DE-F78901", dollars = 200, emails = ["ada@example.com"]}',
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A project where the module was applied with every option."""
    place = workplace(tmp_path_factory.mktemp("everything"), EVERYTHING)
    bucket_of_another(place.folder, "open-data", "theirs")
    applied = place.apply()
    assert applied.returncode == 0, applied.stderr
    return place


def _bindings(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Who has which role, on every resource, and how."""
    for kind, found in resources(folder).items():
        if kind.endswith("_iam_member"):
            yield from ((binding["member"], binding["role"], binding) for binding in found.values())


def test_every_argument_exists_in_googles_provider(place: Workplace) -> None:
    done = place.terraform("validate", "-no-color")
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("file", "right", "wrong", "says"),
    [
        ("bucket.tf", "retention_duration_seconds", "retention_duration_days", "is not expected here"),
        ("bucket.tf", "bucket_level_access = true", 'bucket_level_access = "yes"', "a bool is required"),
        ("network.tf", '"AUTO_ONLY"', '"AUTO"', "is none of AUTO_ONLY, MANUAL_ONLY"),
        ("network.tf", '"35.235.240.0/20"', '"35.235.240.1/20"', "has host bits set"),
        ("identity.tf", 'account_id   = "hvdcloud"', "", 'The argument "account_id" is required'),
        ("identity.tf", "extract(", "match(", "Condition expression compilation failed"),
        ("outputs.tf", "node.email", "node.mail", "Unsupported attribute"),
    ],
)
def test_what_google_refuses_is_refused_here(place: Workplace, file: str, right: str, wrong: str, says: str) -> None:
    path = place.module / file
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    # What a condition says is only known with a cluster's name.
    done = place.terraform(
        "plan", "-no-color", "-var=project=test-project", '-var=self_delete=["digits"]', "-refresh=false"
    )
    assert done.returncode == 1
    assert says in " ".join(done.stderr.split())


@pytest.mark.nightly
def test_terraforms_own_tests_pass(place: Workplace) -> None:
    # What they have made they delete.
    bucket = place.module / "bucket.tf"
    bucket.write_text(bucket.read_text().replace("prevent_destroy = true", "prevent_destroy = false"))
    done = place.terraform("test", "-no-color")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 failed" in done.stdout


@pytest.mark.nightly
def test_checkov_finds_nothing(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    shutil.copytree(MODULE, tmp_path / "module", ignore=shutil.ignore_patterns(".terraform*"))
    checkov = [f"{VENV}/bin/checkov", "-d", f"{tmp_path}/module", "--framework", "terraform", "--skip-download"]
    # In a folder without .checkov.yaml, whose `quiet` leaves out what is skipped.
    done = subprocess.run([*checkov, "--output=json"], cwd=tmp_path, capture_output=True, text=True)
    report = json.loads(done.stdout)
    failed = [f"{check['check_id']} {check['resource']}" for check in report["results"]["failed_checks"]]
    assert failed == []
    assert report["summary"]["passed"] > 20
    assert all(check["check_result"]["suppress_comment"] for check in report["results"]["skipped_checks"])


def test_nothing_is_open_to_the_internet(everything: Workplace) -> None:
    rules = resources(everything.folder)["google_compute_firewall"].values()
    assert [rule["source_ranges"] for rule in rules] == [["35.235.240.0/20"]]
    assert all(rule["target_tags"] == ["hvdcloud"] for rule in rules)


def test_nodes_may_only_do_their_work(place: Workplace) -> None:
    applied = place.apply()
    assert applied.returncode == 0, applied.stderr
    assert {(who, role) for who, role, _ in _bindings(place.folder)} == {
        (NODES, "roles/storage.objectCreator"),
        (NODES, "roles/storage.objectViewer"),
        (NODES, "roles/storage.objectUser"),  # with a condition
        (NODES, "roles/artifactregistry.reader"),
        (NODES, "roles/logging.logWriter"),
    }


def test_nodes_replace_only_what_the_grants_for_other_accounts_let_them(place: Workplace) -> None:
    assert place.apply().returncode == 0
    found = [each for who, role, each in _bindings(place.folder) if (who, role) == (NODES, "roles/storage.objectUser")]
    assert [each["condition"][0]["expression"] for each in found] == [RECORDS]


def test_of_data_sets_nodes_read_the_folders_that_were_named_and_nothing_else(everything: Workplace) -> None:
    found = {
        binding["bucket"]: binding["condition"]
        for who, role, binding in _bindings(everything.folder)
        if who == NODES and role == "roles/storage.objectViewer" and binding["bucket"] in ("open-data", "theirs")
    }
    assert found["open-data"] == []
    [condition] = found["theirs"]

    def readable(name: str, kind: str = "Object") -> bool:
        path = f"projects/_/buckets/theirs{name}"
        return holds(condition["expression"], name=path, kind=f"storage.googleapis.com/{kind}")

    assert readable("/objects/imagenet/train/0.tfrecord")
    assert not readable("/objects/imagenet/train-secret/0.tfrecord")
    assert not readable("/objects/imagenet/val/0.tfrecord")
    # Whether objects may be listed is asked of the bucket.
    assert readable("", kind="Bucket")


def test_nodes_may_delete_only_the_clusters_that_were_named(everything: Workplace) -> None:
    role = "projects/test-project/roles/hvdcloudSelfDelete"
    given = [binding for who, each, binding in _bindings(everything.folder) if each == role and who == NODES]
    conditions = {binding["condition"][0]["title"]: binding["condition"][0]["expression"] for binding in given}
    assert conditions.keys() == {"hvdcloud-digits", "hvdcloud-digits-2"}

    def deletable(condition: str, *names: str) -> list[str]:
        return [name for name in names if _holds(conditions[condition], name)]

    assert deletable("hvdcloud-digits", "digits-0", "digits-255", "digits-2-0", "digit-0", "my-digits-0") == [
        "digits-0",
        "digits-255",
    ]
    assert deletable("hvdcloud-digits-2", "digits-2-0", "digits-2", "digits-20", "digits-2-2-0") == ["digits-2-0"]
    assert not _holds(conditions["hvdcloud-digits"], "digits-0", kind="compute.googleapis.com/Disk")


def _holds(expression: str, name: str, *, kind: str = "compute.googleapis.com/Instance") -> bool:
    collection = "disks" if kind.endswith("/Disk") else "instances"
    return holds(expression, name=f"projects/test-project/zones/us-central1-a/{collection}/{name}", kind=kind)


def test_outputs_are_what_hvdcloud_yaml_takes(everything: Workplace) -> None:
    outputs = json.loads(everything.terraform("output", "-json").stdout)
    compute = "https://www.googleapis.com/compute/v1/projects/test-project"
    assert {name: output["value"] for name, output in outputs.items()} == {
        "project": "test-project",
        "region": "us-central1",
        "network": f"{compute}/global/networks/hvdcloud",
        "regions": ["us-central1", "us-east1"],
        "subnetwork": "hvdcloud",
        "service_account": "hvdcloud@test-project.iam.gserviceaccount.com",
        "bucket": "gs://test-project-hvdcloud",
        "repository": "us-central1-docker.pkg.dev/test-project/hvdcloud",
    }


def test_no_plan_deletes_or_replaces_the_bucket(everything: Workplace) -> None:
    before = resources(everything.folder)
    for arguments in (["-destroy"], ["-var=region=us-west1"], ["-var=bucket=another"]):
        refused = everything.apply(*arguments)
        assert refused.returncode == 1
        assert "google_storage_bucket.checkpoints has lifecycle.prevent_destroy set" in " ".join(refused.stderr.split())
    assert resources(everything.folder) == before


@pytest.mark.nightly
def test_a_missing_permission_is_reported_in_googles_words_and_apply_continues_later(place: Workplace) -> None:
    fail(place.folder, "google_compute_network")
    applied = place.apply()
    assert applied.returncode == 1
    denied = "Required 'compute.networks.create' permission for 'projects/test-project/global/networks/hvdcloud'"
    assert f"Error creating Network: googleapi: Error 403: {denied}, forbidden" in " ".join(applied.stderr.split())
    heal(place.folder)
    assert place.apply().returncode == 0
    assert place.plan().returncode == 0


def test_a_bucket_with_checkpoints_outlives_a_module_that_lost_its_guard(tmp_path: Path) -> None:
    with Emulator() as emulator, running_server(tmp_path / "storage") as storage:
        place = workplace(tmp_path, compute=emulator.url, storage=storage.url)
        applied = place.apply()
        assert applied.returncode == 0, applied.stderr
        assert "hvdcloud" in emulator.state.networks
        assert "hvdcloud" in emulator.state.subnetworks["us-central1"]
        assert set(emulator.state.firewalls) == {"hvdcloud-iap"}

        open_bucket("gs://test-project-hvdcloud", endpoint=storage.url).write("digits/model.pt", b"1")
        bucket = place.module / "bucket.tf"
        bucket.write_text(bucket.read_text().replace("prevent_destroy = true", "prevent_destroy = false"))
        destroyed = place.apply("-destroy")
        assert destroyed.returncode == 1
        assert "Error trying to delete bucket test-project-hvdcloud without `force_destroy`" in destroyed.stderr
        # Others may use the APIs.
        assert resources(place.folder).keys() == {"google_project_service", "google_storage_bucket"}
        assert "hvdcloud" not in emulator.state.networks
        assert emulator.state.left() == []
