"""The Compute API client against a server that gives the answers of the test."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from hvdcloud.google import http
from hvdcloud.google.error_rules import Action
from hvdcloud.google.errors import ApiError, operation_errors
from hvdcloud.providers.gce.api.client import ComputeClient
from tests.support.scripted_api import Call, Reply, Script, refusal

REQUEST_ID = "0aa1bb2c-c3dd-4ee4-9ff5-001122334455"


@pytest.fixture
def client(script: Script, monkeypatch: pytest.MonkeyPatch) -> ComputeClient:
    # Seconds, which are not to count where a test looks at the clock.
    importlib.import_module("google.cloud.compute_v1")
    monkeypatch.setattr(http, "RETRY_BASE_SECONDS", 0.01)
    return ComputeClient(project="p", credentials=AnonymousCredentials(), endpoint=script.url, retry_seconds=5)


def operation(status: str = "DONE", **more: Any) -> Reply:
    zone = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
    return Reply({"kind": "compute#operation", "name": "op-1", "status": status, "zone": zone, **more})


BODY = {"count": "2", "minCount": "2", "perInstanceProperties": {"digits-0": {}, "digits-1": {}}}


# --- passing trouble --------------------------------------------------------------------------------------------------


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
def test_passing_trouble_is_tried_again_under_the_same_request_id(
    script: Script, client: ComputeClient, trouble: Reply
) -> None:
    heard: list[str] = []
    client.on_retry = heard.append
    script.replies = [trouble, trouble, operation()]

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


# --- lists ------------------------------------------------------------------------------------------------------------


def test_every_page_is_read_and_what_did_not_answer_is_named(script: Script, client: ComputeClient) -> None:
    nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "none"}}
    first = Reply(
        {
            "items": {"zones/us-central1-a": {"instances": [{"name": "digits-0"}]}, "zones/us-east1-b": nothing},
            "nextPageToken": "t2",
        }
    )
    second = Reply(
        {
            "items": {
                "zones/us-central1-b": {"instances": [{"name": "digits-1"}]},
                "zones/us-central1-c": {"warning": {"code": "UNREACHABLE", "message": "gone fishing"}},
            },
            "unreachables": ["projects/p/zones/us-central1-f", "projects/p/regions/europe-west4"],
        }
    )
    script.replies = [first, refusal(503, "backendError"), first, second]
    found = client.instances("digits")
    assert [vm["name"] for vm in found.items] == ["digits-0", "digits-1"]
    assert set(found.unseen) == {"zone us-central1-f", "region europe-west4", "zone us-central1-c"}
    assert [call.query.get("pageToken") for call in script.calls] == [None, ["t2"], None, ["t2"]]


def test_an_answer_that_is_incomplete_without_saying_where_is_not_taken_as_whole(
    script: Script, client: ComputeClient
) -> None:
    script.replies = [Reply({"items": {}, "warning": {"code": "PARTIAL_SUCCESS", "message": "some are missing"}})]
    assert client.disks(None).unseen == ("part of project p (some are missing)",)


# --- operations -------------------------------------------------------------------------------------------------------


def test_an_operation_is_waited_for_at_our_endpoint_until_it_is_done(script: Script, client: ComputeClient) -> None:
    failed = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no T4 in zone us-central1-a"}]}
    script.replies = [
        operation("RUNNING"),
        Reply(reset=True),
        operation("DONE", error=failed),
    ]
    done = client.wait(operation("PENDING").content, deadline=time.monotonic() + 30)
    (error,) = operation_errors(done)
    assert (error.code, error.status, error.action) == ("ZONE_RESOURCE_POOL_EXHAUSTED", None, Action.NEXT_ZONE)
    assert {call.path for call in script.calls} == {"/compute/v1/projects/p/zones/us-central1-a/operations/op-1/wait"}


def test_vms_that_a_list_leaves_out_are_found_by_name(script: Script, client: ComputeClient) -> None:
    def node(call: Call) -> Reply:
        name = call.path.split("/")[-1]
        return refusal(404, "notFound", "The resource was not found") if name == "digits-1" else Reply({"name": name})

    script.handler = node
    found = client.instances_by_name("z", {"digits-0", "digits-1", "digits-2"})
    assert [vm["name"] for vm in found] == ["digits-0", "digits-2"]
