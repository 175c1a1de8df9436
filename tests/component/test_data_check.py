"""What doctor says of data sets, from a stand-in of Cloud Storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials

from hvdcloud.checks import Finding, Status, failure
from hvdcloud.config.data import DataConfig
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, UsageError
from hvdcloud.providers.gce.doctor import data
from hvdcloud.providers.gce.doctor.account import Login
from hvdcloud.storage.open import open_bucket
from tests.standins.storage import StorageServer, running_server
from tests.support.gce_requests import settings


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageServer]:
    """A bucket with two data sets."""
    with running_server(tmp_path) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        bucket = open_bucket("gs://bucket")
        for number in range(5):
            bucket.write(f"imagenet/train/{number}.tfrecord", bytes(1000))
        bucket.write("imagenet/train-2/0.tfrecord", bytes(7))
        bucket.write("imagenet/val/0.tfrecord", bytes(500))
        yield server


def check(*, nodes: int = 2, region: str | None = "us-central1", **sets: str | dict[str, str]) -> Finding:
    login = Login(credentials=AnonymousCredentials(), project="lab")
    configured = {name: DataConfig.model_validate(each) for name, each in sets.items()}
    try:
        return data.check_data(login, configured, settings(), nodes=nodes, region=region)
    except HvdcloudError as error:
        return failure(error)


def test_the_size_is_said(server: StorageServer) -> None:
    found = check(train="gs://bucket/imagenet/train", val="gs://bucket/imagenet/val")
    assert found.status is Status.OK
    assert found.message == (
        "train: 5.0 kB in 5 objects of gs://bucket/imagenet/train; val: 500 B in 1 object of gs://bucket/imagenet/val"
    )


def test_a_shard_is_a_share_on_each_node(server: StorageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = {"source": "gs://bucket/imagenet/train", "per_node": "shard"}
    assert check(train=shard).message.endswith(" of gs://bucket/imagenet/train, each node its share")
    # 5,000 bytes in all, of which each of two nodes gets 2,500.
    monkeypatch.setattr(data, "_GB", 50)
    assert check(train=shard).status is Status.OK
    assert check(train="gs://bucket/imagenet/train").status is Status.FAILED


@pytest.mark.parametrize(("location", "region"), [("EUROPE-WEST4", "europe-west1"), ("US-EAST1", "asia-east1")])
def test_a_bucket_in_another_region_is_warned_of(server: StorageServer, location: str, region: str) -> None:
    server.settings["location"] = location
    found = check(train="gs://bucket/imagenet/train", region=region)
    assert found.status is Status.WARNING
    assert f"gs://bucket/imagenet/train in {location.lower()}; traffic between regions" in found.message
    assert found.hint == f"use a bucket in {region}, or gce.zones in {location.lower()}"


def test_what_is_not_there_is_refused_with_what_puts_it_there(server: StorageServer) -> None:
    found = check(train="gs://bucket/imagenet/trian", val="gs://bucket/imagenet/val")
    assert (found.status, found.error) == (Status.FAILED, UsageError)
    assert found.message == "data.train: gs://bucket/imagenet/trian holds no objects"
    assert "gcloud storage rsync --recursive DIR gs://bucket/imagenet/trian" in found.hint
    found = check(train="gs://nowhere/imagenet")
    assert (found.status, found.error) == (Status.FAILED, UsageError)
    assert found.message == "data.train: there is no bucket gs://nowhere"
    assert "gcloud storage buckets create gs://nowhere" in found.hint


def test_what_may_not_be_listed_is_refused_with_what_its_owner_can_do(server: StorageServer) -> None:
    server.fault(action={"status": 403}, method="GET", path="/o", times=9)
    found = check(train="gs://bucket/imagenet/train")
    assert (found.status, found.error) == (Status.FAILED, CredentialsError)
    assert "add-iam-policy-binding gs://bucket" in found.hint
    assert "--role=roles/storage.objectViewer" in found.hint


def test_what_does_not_fit_is_a_lack_of_capacity(server: StorageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "VM_IMAGE_GB", 100)
    found = check(train="gs://bucket/imagenet/train")
    assert (found.status, found.error) == (Status.FAILED, CapacityError)
    assert found.hint == "write gce.disk_gb: 150"
