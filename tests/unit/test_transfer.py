"""What it costs that nodes are in another region than their images and their bucket."""

from __future__ import annotations

import pytest

from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.gce.capacity import candidates
from hvdcloud.providers.gce.capacity.candidates import Availability
from hvdcloud.providers.gce.money import prices
from hvdcloud.providers.gce.money.transfer import dollars_per_gb, notices
from hvdcloud.providers.gce.names import region_of
from tests.support.gce_samples import SETTINGS

HERE = ("us-east4", "us-central1", "us-west1")


@pytest.mark.parametrize(
    ("home", "region", "rate"),
    [
        ("us-central1", "us-central1", 0.0),
        ("us-central1", "us-east1", 0.02),
        ("us-central1", "northamerica-northeast1", 0.02),
        ("europe-west4", "europe-west1", 0.02),
        ("us-central1", "europe-west1", None),
        ("asia-east1", "asia-east2", None),
        (None, "us-central1", 0.0),
    ],
)
def test_data_between_regions_has_a_price(home: str | None, region: str, rate: float | None) -> None:
    assert dollars_per_gb(home, region) == rate


def test_what_leaves_the_region_is_said_once_for_each_price() -> None:
    assert list(notices("us-central1", ["us-central1", "us-east1", "us-west1", "europe-west4"])) == [
        "outside of us-central1, each node's image and its checkpoints cost $0.02/GB more ($0.10 for 5 GB): "
        "us-east1, us-west1",
        "outside of us-central1, each node's image and its checkpoints cost more: europe-west4",
    ]
    assert list(notices("us-central1", ["us-central1"])) == []
    assert list(notices(None, ["us-central1", "us-east1"])) == []


@pytest.mark.parametrize(
    ("reference", "region"),
    [
        ("us-east4-docker.pkg.dev/p/hvdcloud/digits@sha256:0", "us-east4"),
        ("us-docker.pkg.dev/p/hvdcloud/digits", None),
        ("localhost:5000/digits", None),
        ("", None),
    ],
)
def test_the_region_of_an_image_is_in_its_name(reference: str, region: str | None) -> None:
    assert registry_region(reference) == region


def regions(home: str | None) -> list[str]:
    zones = candidates.zone_candidates(
        SETTINGS, nodes=2, zones=[], available=Availability(subnetwork_regions=HERE), home=home
    )
    return list(dict.fromkeys(map(region_of, zones)))


def test_of_regions_that_cost_the_same_that_of_the_images_is_tried_first() -> None:
    assert regions(None)[0] == "us-central1"
    assert regions("us-east4")[0] == "us-east4"
    assert sorted(regions("us-east4")) == sorted(HERE)


@pytest.mark.parametrize(("cheaper_by", "first"), [(0.05, "us-east4"), (0.5, "us-west1")])
def test_the_image_is_counted_where_another_region_is_cheaper(
    monkeypatch: pytest.MonkeyPatch, cheaper_by: float, first: str
) -> None:
    monkeypatch.setattr(prices, "knows", lambda region: region in HERE)
    monkeypatch.setattr(
        prices,
        "node_dollars_per_hour",
        lambda *_, region, **__: 1.0 - (cheaper_by if region == "us-west1" else 0.0),
    )
    assert regions("us-east4")[0] == first


def test_zones_that_were_listed_keep_their_order() -> None:
    listed = ["us-west1-a", "us-east4-a"]
    assert candidates.zone_candidates(SETTINGS, nodes=2, zones=listed, home="us-east4") == listed
