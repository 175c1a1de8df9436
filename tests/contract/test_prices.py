"""`hvdcloud prices refresh` against a stand-in of the price catalog, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.billing import BillingServer
from tests.standins.billing.skus import COMPUTE, STORAGE
from tests.support.harness import Ended, Project, project_in

KEY = "AIzaSyA-test_key_0123456789abcdefghijk"
METHOD = "cloudbilling.services.skus.list"


class Place:
    """A project whose `gce.endpoint` is the stand-in."""

    def __init__(self, server: BillingServer, folder: Path) -> None:
        self.server = server
        self.catalog = server.catalog
        self.project: Project = project_in(folder, "digits", provider="gce")
        self.project.configure(provider="gce", gce={"project": "test-project", "endpoint": server.url})
        self.project.environ |= {
            "GOOGLE_APPLICATION_CREDENTIALS": str(server.service_account(folder / "key.json")),
            "HOME": str(folder),
        }
        self.table = self.project.state / "prices.json"

    def no_credentials(self) -> None:
        # gcloud's own file is looked for in HOME; without it the metadata server would be asked.
        self.project.environ.pop("GOOGLE_APPLICATION_CREDENTIALS")
        self.project.environ["NO_GCE_CHECK"] = "True"

    def refresh(self, *args: str, expect: int = 0) -> Ended:
        return self.project.hvdcloud("prices", "refresh", *args, expect=expect)

    def result(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.project.hvdcloud(*args, "--json").out)["result"]
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with BillingServer(api_keys=[KEY], page_size=10) as server:
        yield Place(server, tmp_path)


def test_the_whole_catalog_is_read_and_used_from_then_on(place: Place) -> None:
    before = place.result("prices")
    assert (before["source"], before["regions"]) == (None, ["us-central1"])
    said = place.refresh().out
    entries = sum(len(skus) for skus in place.catalog.skus.values())
    assert f"{entries} prices read; 4 regions" in said
    assert "n1-standard-8 + nvidia-tesla-t4 in us-central1: $0.73 → $0.74" in said
    assert "older prices are kept: nvidia-tesla-p4 (on demand and Spot)" in said
    after = place.result("prices")
    assert after["source"] == str(place.table)
    assert after["regions"] == ["europe-west4", "us-central1", "us-east1", "us-west1"]
    assert "nothing costs something else" in place.refresh().out


def test_every_page_of_both_services_is_asked_for_in_dollars(place: Place) -> None:
    place.refresh()
    pages = sum(-(-len(skus) // 10) for skus in place.catalog.skus.values())
    assert len(place.catalog.asked) == pages
    assert all("currencyCode=USD" in query for query, _ in place.catalog.asked)


def test_a_connection_that_breaks_half_way_is_taken_up_again(place: Place) -> None:
    place.catalog.faults.add({"reset": "before"}, method=METHOD, skip=3)
    assert "4 regions" in place.refresh().out


def test_what_breaks_half_way_for_good_changes_nothing(place: Place) -> None:
    place.refresh()
    before = place.table.read_bytes()
    place.catalog.faults.add({"status": 400, "message": "Invalid page token."}, method=METHOD, skip=3, times=None)
    ended = place.refresh(expect=2)
    assert "cannot read the price catalog" in ended.err
    assert place.table.read_bytes() == before
    assert [path.name for path in place.project.state.iterdir()] == ["prices.json"]


def test_prices_that_cannot_be_right_are_not_written(place: Place) -> None:
    place.catalog.skus = {COMPUTE: [], STORAGE: []}
    ended = place.refresh(expect=5)
    assert "the price catalog cannot be right" in ended.err
    assert not place.table.exists()


def test_an_api_that_is_switched_off_is_reported_with_the_command_that_switches_it_on(place: Place) -> None:
    disabled = {
        "status": 403,
        "message": "Cloud Billing API has not been used in project test-project before or it is disabled.",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED"}],
    }
    place.catalog.faults.add(disabled, method=METHOD, times=None)
    ended = place.refresh(expect=3)
    assert "the Cloud Billing API is switched off in project test-project" in ended.err
    assert "gcloud services enable cloudbilling.googleapis.com" in ended.err


def test_a_key_opens_it_and_is_written_nowhere(place: Place) -> None:
    place.no_credentials()
    ended = place.refresh("--api-key", KEY, "--verbose")
    assert all(KEY not in query and headers["x-goog-api-key"] == KEY for query, headers in place.catalog.asked)
    assert KEY not in ended.out + ended.err + place.table.read_text()
    place.project.environ["GOOGLE_API_KEY"] = KEY
    place.refresh()


def test_a_key_in_the_environment_does_not_replace_credentials(place: Place) -> None:
    place.project.environ["GOOGLE_API_KEY"] = "of-another-api"
    place.refresh()
    assert all("x-goog-api-key" not in headers for _, headers in place.catalog.asked)


@pytest.mark.parametrize("key", ["AIzaSyWrong", "AIzaSy\nBroken", "", "schlüssel"])
def test_a_key_that_is_refused_is_not_repeated(place: Place, key: str) -> None:
    ended = place.project.hvdcloud("prices", "refresh", "--api-key", key, "--json", "--verbose", expect=None)
    assert ended.exit_code in (2, 3)
    assert not key or key not in ended.out + ended.err
    assert "API key" in ended.err
    assert not place.table.exists()


def test_without_credentials_both_ways_to_get_in_are_named(place: Place) -> None:
    place.no_credentials()
    ended = place.refresh(expect=3)
    assert "gcloud auth application-default login" in ended.err
    assert "GOOGLE_API_KEY" in ended.err


def test_a_person_s_calls_count_against_the_project(place: Place, tmp_path: Path) -> None:
    place.project.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(place.server.person(tmp_path / "person.json"))
    ended = place.refresh()
    assert {headers["x-goog-user-project"] for _, headers in place.catalog.asked} == {"test-project"}
    assert "quota project" not in ended.err


def test_a_damaged_table_is_reported_and_written_again(place: Place) -> None:
    place.project.state.mkdir(exist_ok=True)
    place.table.write_text("{")
    said = place.project.hvdcloud("prices").out
    assert "shipped with hvdcloud" in said
    assert "prices.json is damaged" in said
    place.refresh()
    assert place.result("prices")["source"] == str(place.table)


def test_prices_can_be_looked_at_without_a_project(place: Place) -> None:
    (place.project.folder / "hvdcloud.yaml").unlink()
    assert "prices as of" in place.project.hvdcloud("prices", "show").out
