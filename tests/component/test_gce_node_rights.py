"""What doctor says of the nodes' rights, by the policies of several buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from hvdcloud.checks import Status
from hvdcloud.providers.gce.doctor.node_rights import check_node_rights
from hvdcloud.providers.gce.doctor.permissions import Login
from tests.support.scripted_api import Call, Reply, Script

NODES = "hvdcloud@lab.iam.gserviceaccount.com"


def binding(role: str, **more: Any) -> dict[str, Any]:
    return {"role": f"roles/storage.{role}", "members": [f"serviceAccount:{NODES}"], **more}


ADDS, READS, REPLACES = map(binding, ("objectCreator", "objectViewer", "objectUser"))
REPLACES_RECORDS = binding("objectUser", condition={"title": "hvdcloud-run-records"})


@pytest.fixture
def google() -> Iterator[Script]:
    script = Script()
    yield script
    script.close()


@pytest.mark.parametrize(
    ("of_checkpoints", "of_data", "status"),
    [([REPLACES], READS, Status.WARNING), ([ADDS, READS, REPLACES_RECORDS], REPLACES, Status.OK)],
    ids=["may replace checkpoints", "may replace data"],
)
def test_that_jobs_may_replace_checkpoints_is_told_by_the_policy_of_their_own_bucket(
    google: Script, monkeypatch: pytest.MonkeyPatch, of_checkpoints: list[Any], of_data: Any, status: Status
) -> None:
    policies = {"/storage/v1/b/runs/iam": of_checkpoints, "/storage/v1/b/data/iam": [of_data]}

    def answer(call: Call) -> Reply:
        return Reply({"bindings": policies.get(call.path, [])})

    google.handler = answer
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google.url)
    monkeypatch.setenv("HVDCLOUD_GOOGLE_ENDPOINT", google.url)
    login = Login(credentials=AnonymousCredentials(), project="lab")
    found = check_node_rights(
        login, account=NODES, repository=None, bucket="gs://runs", setup="hvdcloud setup", data=["gs://data/train"]
    )
    assert found.status is status, found.message
