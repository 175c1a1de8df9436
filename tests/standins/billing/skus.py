"""Entries in the shape of the real catalog's, written for the tests: some regions, and what must not be taken for ours.

Shape and wording: the API's discovery document, and descriptions that public tools look for. The prices are made up
where they differ from hvdcloud/providers/gce/money/prices.yaml.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

AMERICAS = ("us-central1", "us-east1", "us-west1")
COMPUTE = "6F81-5844-456A"


def sku(
    description: str,
    *prices: str,
    regions: tuple[str, ...] = AMERICAS,
    unit: str = "h",
    usage: str = "OnDemand",
    group: str = "CPU",
) -> dict[str, Any]:
    """One entry.

    Args:
        prices: dollars a unit, one for each tier.
    """
    number = hashlib.sha256(f"{description} {regions}".encode()).hexdigest()[:12].upper()
    sku_id = f"{number[:4]}-{number[4:8]}-{number[8:]}"
    return {
        "name": f"services/{COMPUTE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [
                        {"startUsageAmount": number * 744, "unitPrice": _money(price)}
                        for number, price in enumerate(prices)
                    ],
                },
                "currencyConversionRate": 1,
                "effectiveTime": "2026-11-20T10:00:00.000Z",
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "GLOBAL" if regions == ("global",) else "REGIONAL", "regions": list(regions)},
    }


def _money(price: str) -> dict[str, Any]:
    units, rest = divmod(Decimal(price), 1)
    return {"currencyCode": "USD", "units": str(int(units)), "nanos": int(rest * 10**9)}


def _pair(name: str, on_demand: str, spot: str, *, gpu: bool = False, **options: Any) -> list[dict[str, Any]]:
    """On demand and Spot."""
    place = options.pop("place", "running in Americas")
    cheap = f"{name} attached to Spot Preemptible VMs" if gpu else f"Spot Preemptible {name}"
    return [
        sku(f"{name} {place}", on_demand, **options),
        sku(f"{cheap} {place}", spot, usage="Preemptible", **options),
    ]


def catalog_skus() -> list[dict[str, Any]]:
    """Entries of Compute Engine: us-central1 much as shipped, europe-west4 dearer, us-east1 without A3, P4 nowhere."""
    gb: dict[str, Any] = {"unit": "GiBy.h", "group": "RAM"}
    gpu: dict[str, Any] = {"gpu": True, "group": "GPU"}
    netherlands: dict[str, Any] = {"regions": ("europe-west4",), "place": "running in Netherlands"}
    return [
        *_pair("N1 Predefined Instance Core", "0.031611", "0.01115", group="N1Standard"),
        *_pair("N1 Predefined Instance Ram", "0.004237", "0.001494", **{**gb, "group": "N1Standard"}),
        *_pair("N1 Predefined Instance Core", "0.034773", "0.012265", **netherlands),
        *_pair("N1 Predefined Instance Ram", "0.004661", "0.001643", **netherlands, **gb),
        *_pair("Custom Instance Core", "0.033174", "0.011701"),
        *_pair("Custom Instance Ram", "0.004446", "0.001568", **gb),
        *_pair("G2 Instance Core", "0.024988", "0.013"),
        *_pair("G2 Instance Ram", "0.002927", "0.0019081", **gb),
        *_pair("A2 Instance Core", "0.031611", "0.01265"),
        *_pair("A2 Instance Ram", "0.004237", "0.00222", **gb),
        *_pair("A3 Instance Core", "0.0255", "0.0181", regions=("us-central1",)),
        *_pair("A3 Instance Ram", "0.00222", "0.001736", regions=("us-central1",), **gb),
        *_pair("Nvidia Tesla T4 GPU", "0.36", "0.14", **gpu),
        *_pair("Nvidia Tesla T4 GPU", "0.385", "0.1925", **gpu, **netherlands),
        *_pair("Nvidia Tesla V100 GPU", "2.48", "1.0885", **gpu),
        *_pair("Nvidia L4 GPU", "0.560040239", "0.31481", **gpu),
        *_pair("Nvidia Tesla A100 GPU", "2.933908", "1.58752", **gpu),
        *_pair("Nvidia Tesla A100 80GB GPU", "3.92808", "2.20564", **gpu),
        *_pair("Nvidia H100 80GB GPU", "9.796550569", "5.4", **gpu),
        sku("Balanced PD Capacity", "0.1", unit="GiBy.mo", group="SSD"),
        sku("Balanced PD Capacity in Netherlands", "0.11", unit="GiBy.mo", group="SSD", regions=("europe-west4",)),
        sku("SSD backed Local Storage", "0.08", unit="GiBy.mo", group="LocalSSD"),
        sku("SSD backed Local Storage attached to Spot Preemptible VMs", "0.048", unit="GiBy.mo", group="LocalSSD"),
        # Free for the first hours of a month.
        sku("External IP Charge on a Standard VM", "0", "0.005", regions=("global",), group="ExternalIp"),
        sku("External IP Charge on a Spot Preemptible VM", "0", "0.0025", regions=("global",), group="ExternalIp"),
        *_others(),
    ]


def _others() -> list[dict[str, Any]]:
    """Entries whose names are much like ours and which mean something else."""
    return [
        sku(
            "Commitment v1: Nvidia Tesla T4 GPU running in Americas for 1 Year", "0.22", group="GPU", usage="Commit1Yr"
        ),
        sku("Commitment v1: Cpu in Americas for 3 Years", "0.014", usage="Commit3Yr"),
        sku("Reserved Nvidia Tesla T4 GPU in Americas", "0", group="GPU"),
        sku("Nvidia Tesla T4 GPU attached to DWS Defined Duration VMs running in Americas", "0.2", group="GPU"),
        sku("Nvidia Tesla T4 GPU running in Americas in Calendar Mode", "0.21", group="GPU"),
        sku("Nvidia H100 80GB Plus GPU running in Americas", "11", group="GPU"),
        sku("Nvidia H100 80GB Mega GPU running in Americas", "12", group="GPU"),
        sku("Sole Tenancy Instance Core running in Americas", "0.05"),
        sku("Sole Tenancy Premium for N1 Predefined Instance Core running in Americas", "0.003"),
        sku("N2 Instance Core running in Americas", "0.0316"),
        sku("G2 Custom Instance Core running in Americas", "0.026"),
        sku("Custom Extended Instance Ram running in Americas", "0.00955", unit="GiBy.h", group="RAM"),
        sku("Regional Balanced PD Capacity", "0.2", unit="GiBy.mo", group="SSD"),
        sku("Hyperdisk Balanced Capacity", "0.08", unit="GiBy.mo", group="SSD"),
        sku("SSD backed PD Capacity", "0.17", unit="GiBy.mo", group="SSD"),
        sku("Static Ip Charge", "0", "0.01", group="IpAddress"),
        # A region that is not open yet.
        sku("Nvidia Tesla T4 GPU running in Atlantis", "0", group="GPU", regions=("atlantis-north1",)),
    ]
