"""The Compute API client against a server that gives the answers of the test."""

from __future__ import annotations

import importlib

import pytest
from google.auth.credentials import AnonymousCredentials

from hvdcloud.google import http
from hvdcloud.google.errors import ApiError
from hvdcloud.providers.gce.api.client import ComputeClient
from tests.support.scripted_api import Reply, Script, refusal

REQUEST_ID = "0aa1bb2c-c3dd-4ee4-9ff5-001122334455"


@pytest.fixture
def client(script: Script, monkeypatch: pytest.MonkeyPatch) -> ComputeClient:
    # Seconds, which are not to count where a test looks at the clock.
    importlib.import_module("google.cloud.compute_v1")
    monkeypatch.setattr(http, "RETRY_BASE_SECONDS", 0.01)
    return ComputeClient(project="p", credentials=AnonymousCredentials(), endpoint=script.url, retry_seconds=5)


BODY = {"count": "2", "minCount": "2", "perInstanceProperties": {"digits-0": {}, "digits-1": {}}}


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(429, "rateLimitExceeded"),
        refusal(500, "backendError"),
        refusal(502, "badGateway"),
        refusal(503, "backendError"),
        refusal(504, "gatewayTimeout"),
        refusal(403, "rateLimitExceeded"),
        Reply(b"<html>proxy is sad</html>", status=502, content_type="text/html"),
        Reply(b"<html>sign in to this network</html>", content_type="text/html"),
        Reply(reset=True),
    ],
    ids=lambda reply: "reset" if reply.reset else str(reply.status),
)
def test_passing_trouble_is_tried_again_by_the_same_id(script: Script, client: ComputeClient, trouble: Reply) -> None:
    heard: list[str] = []
    client.on_retry = heard.append
    script.replies = [trouble, trouble, Reply({"kind": "compute#operation", "name": "op-1", "status": "DONE"})]

    client.bulk_insert("us-central1-a", BODY, REQUEST_ID)

    assert [call.query["requestId"] for call in script.calls] == [[REQUEST_ID]] * 3
    assert {call.body for call in script.calls} == {script.calls[0].body}
    assert len(heard) == 2
    assert "again in" in heard[0]


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "invalid"), (404, "notFound"), (409, "alreadyExists"), (412, "x")]
)
def test_what_would_fail_again_is_tried_once(script: Script, client: ComputeClient, status: int, reason: str) -> None:
    script.replies = [refusal(status, reason, "The resource is so.")]
    with pytest.raises(ApiError) as raised:
        client.bulk_insert("us-central1-a", BODY, REQUEST_ID)
    assert (raised.value.status, raised.value.reason, raised.value.message) == (status, reason, "The resource is so.")
    assert len(script.calls) == 1


def test_every_page_is_read_and_what_did_not_answer_is_named(script: Script, client: ComputeClient) -> None:
    nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "none"}}
    cut_off = {"warning": {"code": "UNREACHABLE", "message": "gone fishing"}}
    items = {"zones/us-central1-a": {"instances": [{"name": "digits-0"}]}, "zones/us-east1-b": nothing}
    first = Reply({"items": items, "nextPageToken": "t2"})
    items = {"zones/us-central1-b": {"instances": [{"name": "digits-1"}]}, "zones/us-central1-c": cut_off}
    unseen = ["projects/p/zones/us-central1-f", "projects/p/regions/europe-west4"]
    second = Reply({"items": items, "unreachables": unseen})
    script.replies = [first, refusal(503, "backendError"), first, second]
    found = client.instances("digits")
    assert [vm["name"] for vm in found.items] == ["digits-0", "digits-1"]
    assert set(found.unseen) == {"zone us-central1-f", "region europe-west4", "zone us-central1-c"}
    assert [call.query.get("pageToken") for call in script.calls] == [None, ["t2"], None, ["t2"]]


def test_an_incomplete_answer_without_a_place_is_not_taken_as_whole(script: Script, client: ComputeClient) -> None:
    script.replies = [Reply({"items": {}, "warning": {"code": "PARTIAL_SUCCESS", "message": "some are missing"}})]
    assert client.disks(None).unseen == ("part of project p (some are missing)",)
