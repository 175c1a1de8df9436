"""The stand-ins of Google's other APIs: strict about what is asked, and true to what a test has said of the project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.standins.compute import Emulator

pytestmark = pytest.mark.nightly

TEST_PERMISSIONS = "/v1/projects/test-project:testIamPermissions"


class Asking:
    """A caller with a token."""

    def __init__(self, emulator: Emulator, email: str) -> None:
        self._url = emulator.url
        self._headers = {"Authorization": f"Bearer {emulator.keys.issue(email)[0]}"}

    def get(self, path: str, **query: Any) -> requests.Response:
        return requests.get(self._url + path, params=query, headers=self._headers, timeout=10)

    def post(self, path: str, body: dict[str, Any]) -> requests.Response:
        return requests.post(self._url + path, json=body, headers=self._headers, timeout=10)


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Emulator:
    running.reset()
    return running


@pytest.fixture
def owner(emulator: Emulator) -> Asking:
    return Asking(emulator, emulator.keys.email)


def test_permissions_are_those_of_who_asks(emulator: Emulator, owner: Asking) -> None:
    wanted = {"permissions": ["compute.instances.create", "compute.zones.list"]}
    assert owner.post(TEST_PERMISSIONS, wanted).json() == wanted
    stranger = Asking(emulator, "nodes@test-project.iam.gserviceaccount.com")
    assert stranger.post(TEST_PERMISSIONS, wanted).json() == {}
    emulator.access.allow("nodes@test-project.iam.gserviceaccount.com", "compute.zones.*")
    assert stranger.post(TEST_PERMISSIONS, wanted).json() == {"permissions": ["compute.zones.list"]}
    emulator.access.deny(emulator.keys.email, "compute.instances.create")
    assert owner.post(TEST_PERMISSIONS, wanted).json() == {"permissions": ["compute.zones.list"]}


def test_a_project_that_is_not_there_is_not_told_from_one_that_is_not_ours(emulator: Emulator, owner: Asking) -> None:
    answer = owner.post("/v1/projects/elsewhere:testIamPermissions", {"permissions": ["compute.zones.list"]})
    assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


def test_compute_engine_refuses_where_its_api_is_off_or_nobody_pays(emulator: Emulator, owner: Asking) -> None:
    emulator.google.off.add("compute.googleapis.com")
    refused = owner.get("/compute/v1/projects/test-project").json()["error"]
    assert (refused["code"], refused["details"][0]["reason"]) == (403, "SERVICE_DISABLED")
    emulator.google.off.clear()
    emulator.google.billing = False
    refused = owner.get("/compute/v1/projects/test-project").json()["error"]
    assert (refused["code"], refused["errors"][0]["reason"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEST_PERMISSIONS, {"permission": ["compute.zones.list"]}),
        (TEST_PERMISSIONS, {"permissions": "compute.zones.list"}),
        ("/v1/projects/-/serviceAccounts/a@b.c:testIamPermissions", {"permissions": [1]}),
    ],
)
def test_what_the_schema_does_not_know_is_refused(owner: Asking, path: str, body: dict[str, Any]) -> None:
    assert owner.post(path, body).status_code == 400


def test_nothing_is_answered_without_a_token(emulator: Emulator) -> None:
    assert requests.post(emulator.url + TEST_PERMISSIONS, json={}, timeout=10).status_code == 401
