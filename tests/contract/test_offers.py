"""`hvdcloud offers` against the emulator, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.compute import Emulator
from tests.support.harness import Project, project_in
from tests.support.terminal import terminal


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

    def own(self, zone: str = "us-central1-a") -> dict[str, Any]:
        (one,) = (each for each in self.offers()["offers"] if each["configured"] and each["zone"] == zone)
        return one


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
    assert own["quota"] == []
    prices = [each["dollars_per_hour"] for each in found["offers"]]
    assert prices == sorted(prices)


def test_quota_that_refuses_is_marked_where_it_does(bench: Bench) -> None:
    bench.emulator.set_quota("NVIDIA_T4_GPUS", 1, region="us-central1")
    bench.emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 0, region="us-central1")
    assert bench.own()["quota"] == ["NVIDIA_T4_GPUS: 2 needed, 1 free"]
    assert bench.own("us-east1-c")["quota"] == []
    said = bench.project.hvdcloud("offers").out
    assert "no quota: NVIDIA_T4_GPUS: 2 needed, 1 free" in said


def test_without_credentials_all_else_is_there(bench: Bench) -> None:
    bench.project.environ.pop("GOOGLE_APPLICATION_CREDENTIALS")
    bench.project.environ["NO_GCE_CHECK"] = "True"
    found = bench.offers()
    assert {each["quota"] for each in found["offers"]} == {None}
    assert any("gcloud auth application-default login" in notice for notice in found["notices"])
    assert " ? " in bench.project.hvdcloud("offers").out


def test_without_a_network_all_else_is_there(bench: Bench) -> None:
    bench.project.environ["HVDCLOUD_GOOGLE_ENDPOINT"] = "http://127.0.0.1:9"
    found = bench.offers()
    assert {each["quota"] for each in found["offers"]} == {None}
    (notice,) = (each for each in found["notices"] if each.startswith("quotas"))
    assert "cannot be reached" in notice


@pytest.mark.parametrize("machine_type", ["n1-standard-8", "n1-highmem-96", "a2-megagpu-16g", "a3-highgpu-8g"])
def test_the_table_fits_a_terminal(bench: Bench, machine_type: str) -> None:
    gpu = {"type": "nvidia-tesla-t4", "count": 4} if machine_type.startswith("n1") else None
    bench.configure(machine_type=machine_type, gpu=gpu)
    bench.project.environ.pop("GOOGLE_APPLICATION_CREDENTIALS")
    bench.project.environ["NO_GCE_CHECK"] = "True"
    options = ("--hours", "100", "--nodes", "8")
    with terminal(bench.project, "offers", *options) as opened:
        _, printed = opened.end()
    table = printed.decode().partition("8 nodes with disks")[0].splitlines()
    assert len(table) > 4
    assert max(map(len, table)) <= 80


def test_a_few_lines_are_shown_and_the_configured_cluster_is_one_of_them(bench: Bench) -> None:
    bench.configure(machine_type="a3-highgpu-1g", gpu=None, spot="all")
    lines = bench.project.hvdcloud("offers").out.splitlines()
    assert any(line.startswith("*  a3-highgpu-1g") for line in lines)
    assert any("more: --json has all" in line for line in lines)
    assert len(lines) < 35


def test_a_subnetworks_name_offers_every_region_that_has_one(bench: Bench) -> None:
    bench.emulator.add_network("mine", {"us-east1": "10.1.0.0/20", "europe-west4": "10.2.0.0/20"})
    bench.configure(network="mine", subnetwork="mine")
    offers = bench.offers()["offers"]
    there = {each["region"] for each in offers if each["region"]}
    assert there == {"us-east1", "europe-west4"}
    assert {each["region"] for each in offers if each["configured"]} == {"us-east1", "europe-west4"}


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


def test_a_person_s_calls_count_against_the_project(bench: Bench, tmp_path: Path) -> None:
    # What `gcloud auth application-default login` leaves, with a token that is good still.
    client = "764086051850-6qr4p6gpi6hn506pt8ejuq83di341hur.apps.googleusercontent.com"
    own = {"type": "authorized_user", "client_id": client, "client_secret": "s", "refresh_token": "r"}
    token = {"token": bench.emulator.keys.issue("ada@example.com")[0], "expiry": "2099-01-01T00:00:00Z"}
    (tmp_path / "person.json").write_text(json.dumps({**own, **token}))
    bench.project.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "person.json")
    bench.project.hvdcloud("offers", "--refresh")
    assert {headers["x-goog-user-project"] for _, headers in bench.emulator.catalog.asked} == {"test-project"}
