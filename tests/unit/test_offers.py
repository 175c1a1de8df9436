"""What is offered, where and for how much, by a fixed price table."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.providers.gce.api.client import Aggregated
from hvdcloud.providers.gce.capacity import offers as gce
from hvdcloud.providers.gce.capacity.availability import Availability, availability
from hvdcloud.providers.gce.money import prices
from hvdcloud.providers.pricing import Offer, rows
from tests.support.gce_samples import SETTINGS

TODAY = date(2026, 11, 20)
TABLE: dict[str, Any] = {
    "as_of": "2026-11-20",
    "region": "us-central1",
    "regions": {
        "us-central1": {
            "n1-vcpu": [0.03, 0.01],
            "n1-gb": [0.004, 0.001],
            "nvidia-tesla-t4": [0.35, 0.10],
            "g2-standard-8": [0.85, 0.34],
            "disk-gb-month": [0.073, 0.073],
            "local-ssd-gb-month": [0.08, 0.048],
            "address": [0.005, 0.0025],
        },
        "europe-west4": {"n1-vcpu": [0.04, 0.02], "n1-gb": [0.005, 0.002], "nvidia-tesla-t4": [0.40, None]},
    },
}


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path))
    prices.save(prices.Table.model_validate(TABLE))


def offered(*, available: Availability | None = None, zones: tuple[str, ...] = (), **options: Any) -> list[Offer]:
    settings = replace(SETTINGS, **options.pop("settings", {}))
    compared = {name: options.pop(name) for name in ("gpu", "cpu_image", "today") if name in options}
    kinds = gce.kinds(settings, **{"gpu": None, "today": TODAY, **compared})
    common = {"nodes": 2, "hours": 10.0, "zones": zones, "available": available or Availability()}
    return gce.offers(settings, kinds, **{**common, **options})


def the(found: list[Offer], machine_type: str, zone: str, *, spot: bool, gpu: str | None = None) -> Offer:
    (one,) = (
        each
        for each in found
        if (each.machine_type, each.zone, each.spot) == (machine_type, zone, spot) and gpu in (None, each.gpu_type)
    )
    return one


def test_the_configured_cluster_costs_what_its_parts_cost() -> None:
    own = the(offered(), "n1-standard-8", "us-central1-a", spot=False, gpu="nvidia-tesla-t4")
    # 8 vCPUs 0.24, 30 GB 0.12, T4 0.35, 100 GB of disk 7.30 a month = 0.01 an hour, address 0.005: 0.725 a node
    assert own.dollars_per_hour == pytest.approx(1.45)
    assert own.dollars == pytest.approx(14.50)
    assert own.configured
    assert not own.estimate
    assert own.ends == date(2027, 8, 1)


def test_with_workers_on_spot_the_head_is_on_demand_in_every_offer() -> None:
    found = offered(settings={"spot": "workers"}, nodes=4)
    own = the(found, "n1-standard-8", "us-central1-a", spot=True, gpu="nvidia-tesla-t4")
    # 0.725 + 3 x 0.2225
    assert own.dollars_per_hour == pytest.approx(1.3925)
    assert (own.spot_nodes, own.configured) == ("workers", True)
    assert {offer.spot_nodes for offer in found} == {"workers", "none"}
    # 0.865 + 3 x (0.34 + 0.01 + 0.0025)
    other = the(found, "g2-standard-8", "us-central1-a", spot=True)
    assert other.dollars_per_hour == pytest.approx(1.9225)
    assert not other.configured


def test_a_region_that_the_table_does_not_know_is_an_estimate() -> None:
    other = the(offered(), "n1-standard-8", "asia-east1-a", spot=False, gpu="nvidia-tesla-t4")
    assert other.dollars_per_hour == pytest.approx(1.45)
    assert other.estimate


def test_the_cheapest_come_first() -> None:
    hourly = [offer.dollars_per_hour for offer in offered()]
    assert hourly == sorted(hourly)
    assert len(set(hourly)) > 4


def test_nodes_with_as_many_gpus_are_offered() -> None:
    found = {(offer.machine_type, offer.gpu_type) for offer in offered(settings={"gpu_count": 2})}
    assert ("n1-standard-8", "nvidia-tesla-t4") in found
    assert ("n1-standard-8", "nvidia-tesla-v100") in found
    assert ("g2-standard-24", "nvidia-l4") in found
    assert ("a2-ultragpu-2g", "nvidia-a100-80gb") in found
    assert {offer.gpu_count for offer in offered(settings={"gpu_count": 2})} == {2}


def test_without_gpus_machines_with_as_many_vcpus_are_offered() -> None:
    found = offered(settings={"gpu_type": None, "gpu_count": 0})
    assert {offer.machine_type for offer in found} == {"n1-standard-8", "n1-highmem-8", "n1-highcpu-8"}


def test_an_image_that_uses_no_gpu_is_offered_machines_without_one_too() -> None:
    found = offered(cpu_image=True)
    assert {offer.machine_type for offer in found if not offer.gpu_type} == {
        "n1-standard-8",
        "n1-highmem-8",
        "n1-highcpu-8",
    }
    assert found[0].gpu_type is None, "the cheapest first"
    assert all(offer.gpu_type for offer in offered(cpu_image=True, gpu="nvidia-l4"))


def test_a_gpu_that_was_switched_off_is_not_offered() -> None:
    found = offered(today=date(2027, 8, 1))
    assert {offer.gpu_type for offer in found} >= {"nvidia-l4", "nvidia-tesla-v100"}
    assert "nvidia-tesla-t4" not in {offer.gpu_type for offer in found}
    assert not any(offer.configured for offer in found)


def test_where_the_api_answers_its_zones_count() -> None:
    available = Availability(
        places={
            "n1-standard-8": {"us-central1-a", "moon-north1-a", "us-east1-b"},
            "nvidia-tesla-t4": {"us-central1-a", "moon-north1-a"},
        }
    )
    found = offered(available=available, gpu="nvidia-tesla-t4")
    assert [offer.zone for offer in found if not offer.spot] == ["us-central1-a", "moon-north1-a"]


QUOTAS = [{"metric": "NVIDIA_T4_GPUS", "limit": 3.0, "usage": 2.0}]


def test_quota_that_would_refuse_is_reported() -> None:
    available = Availability(regional_quotas={"us-central1": QUOTAS}, project_quotas=[])
    found = offered(available=available)
    own = the(found, "n1-standard-8", "us-central1-a", spot=False, gpu="nvidia-tesla-t4")
    assert own.quota == ("NVIDIA_T4_GPUS: 2 needed, 1 free",)
    assert the(found, "g2-standard-8", "us-central1-a", spot=False).quota == ()


def test_a_line_is_a_region_and_alike_regions_are_one_line() -> None:
    found = offered(gpu="nvidia-tesla-t4")
    short = rows(found)
    one = next(row for row in short if row.offer.region == "us-central1" and not row.offer.spot)
    assert one.zones == ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
    on_demand = [(row.offer.region, row.more_regions) for row in short if not row.offer.spot]
    # What us-central1 costs, what the same is estimated to cost elsewhere, what europe-west4 costs.
    assert on_demand == [("us-central1", 0), ("us-east1", 20), ("europe-west4", 0)]


@pytest.mark.parametrize(
    ("unseen", "zones"),
    [
        ((), ["us-central1-a"]),
        # The catalogue is the better guess where a zone is missing in the list.
        (("zone us-central1-b",), ["us-central1-a", "us-central1-b", "us-central1-c"]),
        (("part of project p",), ["us-central1-a", "us-central1-b", "us-central1-c"]),
    ],
)
def test_what_did_not_answer_is_not_taken_to_have_nothing(unseen: tuple[str, ...], zones: list[str]) -> None:
    machines = Aggregated(items=[{"name": "n1-standard-8", "zone": "zones/us-central1-a"}], unseen=unseen)
    found = availability({"machine_types": machines}, SETTINGS, machines=["n1-standard-8"], gpus=[])
    listed = ["us-central1-a", "us-central1-b", "us-central1-c"]
    assert found.zones(listed, ["n1-standard-8"]) == zones
