"""A person's login may name the project that calls count against: requests and what refusals say name it too."""

from __future__ import annotations

import json
from pathlib import Path

import google.auth
import pytest

from hvdcloud.google.credentials import google_credentials
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.storage.gcs import GcsBucket
from tests.support.scripted_api import Reply, Script


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `gcloud auth application-default login` leaves."""
    file = tmp_path / "adc.json"
    own = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    token = {"token": "ya29.good-still", "expiry": "2099-01-01T00:00:00Z"}
    file.write_text(json.dumps({**own, **token, "quota_project_id": "counted"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return file


def compute(script: Script) -> ComputeClient:
    credentials, project = google_credentials("mine")
    return ComputeClient(project=project, credentials=credentials, endpoint=script.url, retry_seconds=5)


def test_every_request_names_the_quota_project_of_the_login(script: Script, login: Path) -> None:
    script.handler = lambda _: Reply({"name": "op-1"})
    compute(script).instances("digits")
    compute(script).insert_firewall({"name": "digits-ssh"}, "0aa1bb2c-c3dd-4ee4-9ff5-001122334455")
    credentials, _ = google.auth.load_credentials_from_file(str(login))
    bucket = GcsBucket(bucket="b", prefix="", endpoint=script.url, credentials=credentials, retry_seconds=5)
    assert list(bucket.list("")) == []
    assert [asked.quota_project for asked in script.calls] == ["counted"] * 3
