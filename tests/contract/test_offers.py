"""`hvdcloud offers` against the emulator, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.compute import Emulator
from tests.support.harness import Project, project_in


class Bench:
    """A project in the emulator."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self.emulator = emulator
        self.project: Project = project_in(folder, "digits")
        self.project.environ = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(emulator.credentials_file(folder / "key.json")),
            "HOME": str(folder),
            "HVDCLOUD_GOOGLE_ENDPOINT": emulator.url,
        }
        self.configure()

    def configure(self, *, image: dict[str, Any] | None = None, more: dict[str, Any] | None = None, **gce: Any) -> None:
        gpu = {"type": "nvidia-tesla-t4", "count": 1}
        where = {"project": "test-project", "gpu": gpu, **gce}
        self.project.configure(provider="gce", nodes=2, image=image or {"device": "cuda"}, gce=where, **more or {})

    def offers(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.project.hvdcloud("offers", *args, "--json").out)["result"]
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Emulator() as emulator:
        yield Bench(emulator, tmp_path)


def test_offers_are_listed_with_what_they_cost(bench: Bench) -> None:
    found = bench.offers("--hours", "12")
    own = next(each for each in found["offers"] if each["configured"])
    # 8 x 0.031611 + 30 x 0.004237 + 0.35 + 10 / 730 + 0.005 = 0.748697
    assert round(own["dollars_per_hour"], 2) == 1.50
    assert round(own["dollars"], 2) == 17.97
    assert own["quota"] == ""
    prices = [each["dollars_per_hour"] for each in found["offers"]]
    known = [price for price in prices if price is not None]
    assert prices == [*sorted(known), *[None] * (len(prices) - len(known))]


def test_a_gpu_that_comes_in_eights_only_is_offered_in_eights(bench: Bench) -> None:
    found = bench.offers("--gpu", "nvidia-b200")["offers"]
    assert {(each["machine_type"], each["gpu_count"]) for each in found} == {("a4-highgpu-8g", 8)}
    assert {each["dollars_per_hour"] for each in found} == {None}


def test_every_way_to_get_a_machine_is_a_line_with_its_condition(bench: Bench) -> None:
    ways: dict[str, set[str]] = {}
    for each in bench.offers()["offers"]:
        ways.setdefault(each["machine_type"], set()).add(each["provisioning"])
    assert ways["n1-standard-8"] == {"standard", "spot", "reservation"}
    assert ways["g2-standard-4"] == {"standard", "spot", "flex-start", "reservation"}
    assert ways["a3-highgpu-1g"] == {"spot", "flex-start"}
    assert ways["g4-standard-48"] == {"standard", "spot", "reservation"}
    assert [each["dollars"] for each in bench.offers("--gpu", "nvidia-rtx-pro-6000")["offers"]] == [None, None, None]
    lines = bench.project.hvdcloud("offers", "--gpu", "nvidia-l4").out.splitlines()
    flex = next(line for line in lines if "g2-standard-4" in line and "flex-start" in line)
    assert "<1.45" in flex
    assert "waits for room, ends within 7 days" in flex
    assert " ? " in bench.project.hvdcloud("offers", "--gpu", "nvidia-rtx-pro-6000").out


def test_without_credentials_all_else_is_there(bench: Bench) -> None:
    bench.project.environ.pop("GOOGLE_APPLICATION_CREDENTIALS")
    bench.project.environ["NO_GCE_CHECK"] = "True"
    found = bench.offers()
    assert {each["quota"] for each in found["offers"]} == {None}
    assert any("gcloud auth application-default login" in notice for notice in found["notices"])
    assert " ?" in bench.project.hvdcloud("offers").out


# --- prices of every region -------------------------------------------------------------------------------------------

METHOD = "cloudbilling.services.skus.list"


def test_the_whole_catalog_is_read_and_used_from_then_on(bench: Bench) -> None:
    catalog = bench.emulator.catalog
    catalog.page_size = 10
    before = bench.offers()
    catalog.faults.add({"reset": "before"}, method=METHOD, skip=3)
    said = bench.project.hvdcloud("offers", "--refresh").err
    assert f"{len(catalog.skus)} prices read" in said
    assert all("currencyCode=USD" in query for query, _ in catalog.asked)
    after = bench.offers()
    assert after["prices_as_of"] > before["prices_as_of"]
    dutch = [each for each in after["offers"] if each["region"] == "europe-west4" and each["gpu_type"]]
    assert any(not each["estimate"] for each in dutch)
    assert all(each["estimate"] for each in before["offers"] if each["region"] == "europe-west4")


def test_prices_that_cannot_be_read_or_be_right_change_nothing(bench: Bench) -> None:
    catalog, table = bench.emulator.catalog, bench.project.state / "prices.json"
    bench.project.hvdcloud("offers", "--refresh")
    before = table.read_bytes()
    catalog.page_size = 10
    catalog.faults.add({"status": 400, "message": "Invalid page token."}, method=METHOD, skip=3)
    assert "cannot read the price catalog" in bench.project.hvdcloud("offers", "--refresh", expect=2).err
    disabled = {
        "status": 403,
        "message": "Cloud Billing API has not been used in project test-project before or it is disabled.",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED"}],
    }
    catalog.faults.add(disabled, method=METHOD)
    ended = bench.project.hvdcloud("offers", "--refresh", expect=3)
    assert "gcloud services enable cloudbilling.googleapis.com" in ended.err
    catalog.skus = []
    ended = bench.project.hvdcloud("offers", "--refresh", expect=5)
    assert "the price catalog cannot be right" in ended.err
    assert table.read_bytes() == before
    assert [path.name for path in bench.project.state.iterdir()] == ["prices.json"]
