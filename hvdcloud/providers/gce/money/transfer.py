"""What it costs that nodes are in another region than their images and their bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hvdcloud.units import dollars, some

IMAGE_GB = 5.0
"""What each node pulls, roughly: an image for GPUs; those for CPUs are smaller."""
_DOLLARS_PER_GB = {"northamerica": 0.02, "europe": 0.02}
"""Between two regions of a continent: https://cloud.google.com/storage/pricing#network-buckets"""


def continent(place: str) -> str:
    """Of a region or a zone, as the first word of most regions there: `northamerica`, `europe`."""
    first = place.partition("-")[0]
    return {"us": "northamerica"}.get(first, first)


def dollars_per_gb(home: str | None, region: str) -> float | None:
    """Of data between two regions; 0 within one, or if `home` is not known; None: the price is not known."""
    if home in (None, region):
        return 0.0
    return _DOLLARS_PER_GB.get(continent(region)) if home and continent(home) == continent(region) else None


def notices(home: str | None, regions: Iterable[str]) -> Iterator[str]:
    """What a person should know before nodes go to these regions."""
    rates: dict[float | None, list[str]] = {}
    for region in regions:
        rates.setdefault(dollars_per_gb(home, region), []).append(region)
    for rate, found in rates.items():
        if rate == 0:
            continue
        price = "more" if rate is None else f"{dollars(rate)}/GB more ({dollars(rate * IMAGE_GB)} for {IMAGE_GB:g} GB)"
        yield f"outside of {home}, each node's image and its checkpoints cost {price}: {some(found)}"
