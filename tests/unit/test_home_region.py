"""Nodes are made near their images where that costs no more, and what leaves the region is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.gce.capacity.availability import Availability, zone_candidates
from hvdcloud.providers.gce.money import prices
from hvdcloud.providers.gce.names import continent, region_of
from hvdcloud.providers.gce.plan.budget import traffic_notices
from tests.support.gce_samples import SETTINGS

HERE = ("us-east4", "us-central1", "us-west1")


def test_what_leaves_the_region_is_said_once() -> None:
    assert list(traffic_notices("us-central1", ["us-central1", "us-east1", "europe-west4"])) == [
        "outside of us-central1, Google bills traffic for each node's image and its checkpoints: us-east1, europe-west4"
    ]
    assert list(traffic_notices("us-central1", ["us-central1"])) == []
    assert list(traffic_notices(None, ["us-central1", "us-east1"])) == []


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


def regions(home: str | None, *, there: Sequence[str] | None = HERE) -> list[str]:
    zones = zone_candidates(SETTINGS, nodes=2, zones=[], available=Availability(subnetwork_regions=there), home=home)
    return list(dict.fromkeys(map(region_of, zones)))


def test_of_regions_that_cost_the_same_that_of_the_images_is_tried_first() -> None:
    assert regions(None)[0] == "us-central1"
    assert regions("us-east4")[0] == "us-east4"
    assert sorted(regions("us-east4")) == sorted(HERE)


def test_another_continent_comes_last_and_a_cheaper_region_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert regions("europe-west4", there=None)[0] == "europe-west4"
    assert continent(regions("europe-west4", there=None)[-1]) != "europe"
    monkeypatch.setattr(prices, "knows", lambda region: region in HERE)
    monkeypatch.setattr(prices, "node_dollars_per_hour", lambda *_, region, **__: 0.5 if region == "us-west1" else 1.0)
    assert regions("us-east4")[0] == "us-west1"


def test_zones_that_were_listed_keep_their_order() -> None:
    listed = ["us-west1-a", "us-east4-a"]
    assert zone_candidates(SETTINGS, nodes=2, zones=listed, home="us-east4") == listed
