"""What `offers` answers: clusters with their prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdcloud.config.gce import Provisioning


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A whole cluster of one kind in one zone."""

    machine_type: str
    gpu_type: str | None
    gpu_count: int
    """Of one node."""
    provisioning: Provisioning
    region: str | None
    zone: str | None
    """None: in no zone."""
    dollars_per_hour: float | None
    """All nodes with their disks and external addresses; None: not known."""
    dollars: float | None
    """For as many hours as were asked for."""
    at_most: bool
    """It may cost less: flex-start has discounts, and a reservation may be paid for already."""
    estimate: bool
    """The price is another region's."""
    configured: bool
    """It is what hvdcloud.yaml asks for."""
    ends: date | None = None
    """The day from which the GPU is no longer available."""
    quota: str | None = None
    """The quota that refuses it: `NVIDIA_T4_GPUS 2 needed, 1 of 1 free`; empty: none; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffersResult:
    """Cheapest first, one for each zone."""

    nodes: int
    hours: float
    """That `Offer.dollars` is for."""
    prices_as_of: date
    offers: tuple[Offer, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Offers that differ by their zones only, shown by one of them."""

    offer: Offer
    zones: tuple[str, ...]
    """Of the first region."""
    more_regions: int = 0


def rows(found: Sequence[Offer]) -> list[Row]:
    """Offers that go into one line: of all regions where they are alike."""
    groups: dict[Offer, dict[str | None, list[str]]] = {}
    for offer in found:
        # Clusters in regions at one price differ by nothing else.
        alike = groups.setdefault(replace(offer, zone=None, region=None), {})
        alike.setdefault(offer.region, []).extend([offer.zone] if offer.zone else [])
    return [
        Row(
            offer=replace(key, region=next(iter(regions))),
            zones=tuple(next(iter(regions.values()))),
            more_regions=len(regions) - 1,
        )
        for key, regions in groups.items()
    ]
