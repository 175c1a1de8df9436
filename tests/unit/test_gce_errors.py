"""What an error of the Compute API means, in each of its forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.google.error_rules import Action
from hvdcloud.google.errors import ApiError, answer_error, operation_errors

NOT_FOUND = "The resource 'projects/p/{}' was not found"


def operation(*errors: dict[str, Any]) -> dict[str, Any]:
    link = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/operations/op-1"
    return {"name": "op-1", "status": "DONE", "selfLink": link, "error": {"errors": list(errors)}}


def answer(status: int, legacy: str, message: str) -> ApiError:
    error = {"code": status, "message": message, "errors": [{"reason": legacy, "message": message}]}
    return answer_error(status, json.dumps({"error": error}), project="p")


@pytest.mark.parametrize(
    ("code", "message", "action", "family"),
    [
        ("RESOURCE_POOL_EXHAUSTED", "no room", Action.NEXT_ZONE, CapacityError),
        ("GPU_STOCKOUT", "no room", Action.NEXT_ZONE, CapacityError),
        ("REGION_RESOURCE_POOL_EXHAUSTED", "no room", Action.NEXT_REGION, CapacityError),
        ("RESOURCE_NOT_FOUND", "The resource was not found", Action.RETRY, CapacityError),
        ("RESOURCE_NOT_FOUND", NOT_FOUND.format("global/networks/none"), Action.STOP, UsageError),
        ("RESOURCE_ALREADY_EXISTS", "The resource already exists", Action.STOP, UsageError),
        ("IAM_PERMISSION_DENIED", "no", Action.STOP, CredentialsError),
        ("ANYTHING", "Policy update access denied.", Action.STOP, CredentialsError),
        ("ANYTHING", "Requested disk size cannot be smaller than the image size (50 GB)", Action.STOP, UsageError),
        ("NEVER_HEARD_OF", "what is this", Action.STOP, NodeError),
    ],
)
def test_every_code_of_an_operation_has_one_meaning(
    code: str, message: str, action: Action, family: type[HvdcloudError]
) -> None:
    """Those that test_real_errors.py does not have."""
    (error,) = operation_errors(operation({"code": code, "message": message}))
    assert (error.action, error.rule.error) == (action, family)


def test_an_operation_with_nothing_but_an_http_status_of_400_or_above_has_failed() -> None:
    (error,) = operation_errors({**operation(), "httpErrorStatusCode": 400})
    assert (error.status, error.message) == (400, "HTTP 400")
    assert operation_errors({**operation(), "httpErrorStatusCode": 200}) == operation_errors(operation()) == []


@pytest.mark.parametrize(
    ("status", "reason", "message", "action", "family"),
    [
        (403, "", "no", Action.STOP, CredentialsError),
        (404, "notFound", NOT_FOUND.format("zones/mars-a"), Action.STOP, UsageError),
        (412, "conditionNotMet", "Supplied fingerprint does not match", Action.STOP, UsageError),
        (429, "", "slow down", Action.RETRY, NodeError),
        (502, "", "<html>", Action.RETRY, NodeError),
        (503, "insufficientCapacity", "no room", Action.NEXT_ZONE, CapacityError),
        (504, "", "later", Action.RETRY, NodeError),
    ],
)  # fmt: skip
def test_every_answer_has_one_meaning(
    status: int, reason: str, message: str, action: Action, family: type[HvdcloudError]
) -> None:
    """Those that test_real_errors.py does not have."""
    error = answer(status, reason, message)
    assert (error.action, error.rule.error) == (action, family)


def test_a_page_that_is_no_json_is_kept() -> None:
    error = answer_error(502, b"<html>Bad Gateway</html>")
    assert (error.status, error.action) == (502, Action.RETRY)
    assert "Bad Gateway" in str(error)


@pytest.mark.parametrize("body", ["null", "[]", '{"error": "invalid_grant"}', '{"error": {"errors": []}}', "{}", ""])
def test_no_answer_breaks_the_reader(body: str) -> None:
    assert answer_error(400, body).action is Action.STOP
