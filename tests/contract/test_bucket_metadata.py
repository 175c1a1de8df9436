"""`gs://` with the token of a VM's service account, which its metadata server hands out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.standins.storage import running_server
from tests.support.http_server import Asked, Reply, answering
from tests.support.nodes import REPOSITORY

ACCOUNT = "/computeMetadata/v1/instance/service-accounts/"
EMAIL = "nodes@lab.iam.gserviceaccount.com"
TOKEN = "token-of-the-vm"

# google-auth reads the variables when it is imported, so this takes a process of its own.
_JOB = """
import json, sys, time
from hvdcloud.storage.gcs_client import vm_credentials
from hvdcloud.storage.open import open_bucket
from hvdcloud.errors import HvdcloudError

time.sleep = lambda seconds: None  # between google-auth's attempts
bucket = open_bucket("gs://bucket/p", endpoint=sys.argv[1], credentials=vm_credentials(), retry_seconds=2)
try:
    bucket.write("x", b"weights")
    print(json.dumps([bucket.read("x").decode(), [info.name for info in bucket.list("")]]))
except HvdcloudError as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
"""


@contextmanager
def metadata_server(*, refuses: int = 0) -> Iterator[tuple[str, list[str]]]:
    """What a VM's metadata server says of its service account; yields its address and the paths it was asked for."""
    asked: list[str] = []

    def answer(request: Asked) -> Reply:
        asked.append(request.path)
        headers = {"Metadata-Flavor": "Google"}
        if refuses or request.headers["Metadata-Flavor"] != "Google" or not request.path.startswith(ACCOUNT):
            return Reply(status=refuses or 404, headers=headers)
        if request.path.endswith("/token"):
            return Reply({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}, headers=headers)
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        return Reply({"email": EMAIL, "scopes": scopes, "aliases": ["default"]}, headers=headers)

    with answering(answer) as url:
        yield url.removeprefix("http://"), asked


def job(endpoint: str, metadata: str) -> list[Any]:
    """What a VM gets to see of a bucket."""
    own = {"GCE_METADATA_HOST": metadata, "GCE_METADATA_IP": metadata, "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere"}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **own}
    command = [sys.executable, "-c", _JOB, endpoint]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_every_request_carries_the_token_of_the_vm_also_where_an_endpoint_is_given(tmp_path: Path) -> None:
    with running_server(tmp_path / "server", authorize=TOKEN.__eq__) as server, metadata_server() as (metadata, asked):
        assert job(server.url, metadata) == ["weights", ["x"]]
        assert set(server.tokens) == {TOKEN}
    assert f"{ACCOUNT}default/token" in asked


def test_a_token_that_the_bucket_does_not_take_is_a_matter_of_roles(tmp_path: Path) -> None:
    with running_server(tmp_path / "server", authorize="other".__eq__) as server, metadata_server() as (metadata, _):
        kind, message, hint = job(server.url, metadata)
    assert kind == "CredentialsError"
    assert "Invalid Credentials" in message
    assert "roles/storage.objectUser" in hint


def test_a_metadata_server_that_is_away_is_no_reason_to_give_a_checkpoint_up(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server, metadata_server(refuses=503) as (metadata, asked):
        kind, message, _ = job(server.url, metadata)
    assert kind == "BucketUnreachableError"
    assert "Metadata server unavailable" in message
    assert len(asked) > 1
