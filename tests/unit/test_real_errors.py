"""Errors that Google has really sent (real_errors.yaml), given to the code as they would arrive."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdcloud import errors
from hvdcloud.errors import CredentialsError, HvdcloudError
from hvdcloud.google.error_rules import RULES
from hvdcloud.google.errors import ApiError, answer_error, operation_errors
from hvdcloud.image.engine_reports import says_refused
from hvdcloud.image.publish import registry, transfer

PROJECT = "my-project"
HOST = "us-central1-docker.pkg.dev"
STATUS_NAMES = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 412: "FAILED_PRECONDITION"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One error; real_errors.yaml says what each field is."""

    id: str
    seen: str
    message: str
    error: str
    hint: list[str]
    by: str = "answer"
    status: int | None = None
    reason: str = ""
    code: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    quota: dict[str, Any] = field(default_factory=dict)
    service: str = "compute"
    action: str = ""
    rest: bool = False


TEXT = Path(__file__).with_name("real_errors.yaml").read_text(encoding="utf-8")
ROWS = [Row(**row) for row in yaml.load(TEXT, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
OF_APIS = [row for row in ROWS if row.by in ("answer", "operation")]


def of_api(row: Row) -> ApiError:
    if row.by == "operation":
        (error,) = operation_errors(as_operation(row))
        return error
    assert row.status is not None
    return answer_error(row.status, as_answer(row), project=PROJECT, service=row.service)


def as_answer(row: Row) -> bytes:
    """The body of an HTTP answer."""
    error: dict[str, Any] = {"code": row.status, "message": row.message}
    if row.reason:
        error["errors"] = [{"message": row.message, "domain": "global", "reason": row.reason}]
    if row.info or not row.reason:
        error["status"] = STATUS_NAMES.get(row.status or 0, "UNKNOWN")
        help_ = {"@type": "type.googleapis.com/google.rpc.Help", "links": [{"url": "https://cloud.google.com"}]}
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com", **row.info}
        error["details"] = [help_, info] if row.info else []
    return json.dumps({"error": error}).encode()


def as_operation(row: Row) -> dict[str, Any]:
    """An operation that is over, as zoneOperations.wait gives it."""
    found: dict[str, Any] = {"code": row.code, "message": row.message}
    details: list[dict[str, Any]] = []
    if row.info:
        info = {"domain": "compute.googleapis.com", "reason": row.info["reason"], "metadatas": row.info["metadata"]}
        details = [{"help": {"links": [{"url": "https://cloud.google.com"}]}}, {"errorInfo": info}]
    if row.quota:
        details.append({"quotaInfo": row.quota})
    home = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/us-central1-a"
    operation = {
        "kind": "compute#operation",
        "name": "operation-1",
        "operationType": "insert",
        "status": "DONE",
        "progress": 100,
        "selfLink": f"{home}/operations/operation-1",
        "targetLink": f"{home}/instances/digits-0",
        "error": {"errors": [found | ({"errorDetails": details} if details else {})]},
    }
    return operation | ({"httpErrorStatusCode": row.status} if row.status else {})


def shown(row: Row) -> HvdcloudError:
    """What the user sees."""
    if row.by == "push":
        error = transfer.push_error(row.message, reference=f"{HOST}/{PROJECT}/images/app:1")
        refused = says_refused(row.message)
        return CredentialsError(error.message, hint=registry.role_hint(HOST)) if refused else error
    return of_api(row).as_user_error(doing="create 4 VMs")


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_a_real_error_is_of_the_right_class_and_says_what_a_person_can_do(row: Row) -> None:
    error = shown(row)
    assert type(error) is getattr(errors, row.error)
    assert [word for word in row.hint if word not in error.hint] == []
    assert re.search(r"\b(?:PROJECT|CONSTRAINT)\b|[{}]", error.hint) is None
    # Google's own words are never lost.
    assert " ".join(row.message.split()).rstrip(". ") in " ".join(f"{error.message} {error.details}".split())


@pytest.mark.parametrize("row", OF_APIS, ids=[row.id for row in OF_APIS])
def test_a_real_error_leads_to_the_right_action(row: Row) -> None:
    error = of_api(row)
    assert error.action.value == row.action
    assert (error.rule is RULES[-1]) is row.rest


def test_a_real_error_means_the_same_without_an_http_status() -> None:
    """Operations often fail without one."""
    operations = [row for row in ROWS if row.by == "operation"]
    different = [row.id for row in operations if of_api(replace(row, status=None)).action.value != row.action]
    assert different == []


def test_the_corpus_is_large_and_names_its_sources_and_nobody() -> None:
    assert len(ROWS) >= 60
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert [row.seen for row in ROWS if not row.seen.startswith("https://")] == []
    assert {address.rpartition("@")[2] for address in re.findall(r"[\w.-]+@[\w.-]*\w", TEXT)} == {
        "example.com", "my-project.iam.gserviceaccount.com"
    }  # fmt: skip
