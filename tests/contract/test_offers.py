"""`hvdcloud offers` against the emulator, as a user runs it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.standins.compute import Emulator
from tests.support.harness import Project


@pytest.fixture
def project(project: Project) -> Project:
    gce = {"project": "test-project", "gpu": {"type": "nvidia-tesla-t4", "count": 1}}
    project.configure(provider="gce", nodes=2, image={"device": "cuda"}, gce=gce)
    return project


def offers(project: Project, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = project.hvdcloud("offers", *args, "--json").json["result"]
    return found


def test_offers_are_listed_with_what_they_cost(project: Project) -> None:
    found = offers(project, "--hours", "12")
    own = next(each for each in found["offers"] if each["configured"])
    # 8 x 0.031611 + 30 x 0.004237 + 0.35 + 10 / 730 + 0.005 = 0.748697
    assert round(own["dollars_per_hour"], 2) == 1.50
    assert round(own["dollars"], 2) == 17.97
    assert own["quota"] == ""
    prices = [each["dollars_per_hour"] for each in found["offers"]]
    known = [price for price in prices if price is not None]
    assert prices == [*sorted(known), *[None] * (len(prices) - len(known))]


def test_a_gpu_that_comes_in_eights_only_is_offered_in_eights(project: Project) -> None:
    found = offers(project, "--gpu", "nvidia-b200")["offers"]
    assert {(each["machine_type"], each["gpu_count"]) for each in found} == {("a4-highgpu-8g", 8)}
    assert {each["dollars_per_hour"] for each in found} == {None}


def test_every_way_to_get_a_machine_is_a_line_with_its_condition(project: Project) -> None:
    ways: dict[str, set[str]] = {}
    for each in offers(project)["offers"]:
        ways.setdefault(each["machine_type"], set()).add(each["provisioning"])
    assert ways["n1-standard-8"] == {"standard", "spot", "reservation"}
    assert ways["g2-standard-4"] == {"standard", "spot", "flex-start", "reservation"}
    assert ways["a3-highgpu-1g"] == {"spot", "flex-start"}
    assert ways["g4-standard-48"] == {"standard", "spot", "reservation"}
    assert [each["dollars"] for each in offers(project, "--gpu", "nvidia-rtx-pro-6000")["offers"]] == [None, None, None]
    lines = project.hvdcloud("offers", "--gpu", "nvidia-l4").out.splitlines()
    flex = next(line for line in lines if "g2-standard-4" in line and "flex-start" in line)
    assert "<1.45" in flex
    assert "waits for room, ends within 7 days" in flex
    assert " ? " in project.hvdcloud("offers", "--gpu", "nvidia-rtx-pro-6000").out


def test_without_credentials_all_else_is_there(project: Project) -> None:
    project.environ.pop("GOOGLE_APPLICATION_CREDENTIALS")
    project.environ["NO_GCE_CHECK"] = "True"
    found = offers(project)
    assert {each["quota"] for each in found["offers"]} == {None}
    assert any("gcloud auth application-default login" in notice for notice in found["notices"])
    assert " ?" in project.hvdcloud("offers").out


METHOD = "cloudbilling.services.skus.list"


def test_the_whole_catalog_is_read_and_used_from_then_on(emulator: Emulator, project: Project) -> None:
    catalog = emulator.catalog
    catalog.page_size = 10
    before = offers(project)
    catalog.faults.add({"reset": "before"}, method=METHOD, skip=3)
    said = project.hvdcloud("offers", "--refresh").err
    assert f"{len(catalog.skus)} prices read" in said
    assert all("currencyCode=USD" in query for query, _ in catalog.asked)
    after = offers(project)
    assert after["prices_as_of"] > before["prices_as_of"]
    dutch = [each for each in after["offers"] if each["region"] == "europe-west4" and each["gpu_type"]]
    assert any(not each["estimate"] for each in dutch)
    assert all(each["estimate"] for each in before["offers"] if each["region"] == "europe-west4")


def test_prices_that_cannot_be_read_or_be_right_change_nothing(emulator: Emulator, project: Project) -> None:
    catalog, table = emulator.catalog, project.state / "prices.json"
    project.hvdcloud("offers", "--refresh")
    before = table.read_bytes()
    catalog.page_size = 10
    catalog.faults.add({"status": 400, "message": "Invalid page token."}, method=METHOD, skip=3)
    assert "cannot read the price catalog" in project.hvdcloud("offers", "--refresh", expect=2).err
    disabled = {
        "status": 403,
        "message": "Cloud Billing API has not been used in project test-project before or it is disabled.",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED"}],
    }
    catalog.faults.add(disabled, method=METHOD)
    ended = project.hvdcloud("offers", "--refresh", expect=3)
    assert "gcloud services enable cloudbilling.googleapis.com" in ended.err
    catalog.skus = []
    ended = project.hvdcloud("offers", "--refresh", expect=5)
    assert "the price catalog cannot be right" in ended.err
    assert table.read_bytes() == before
    assert [path.name for path in project.state.iterdir()] == ["prices.json"]
