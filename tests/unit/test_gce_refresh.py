"""From the catalog's entries to a price table."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from hvdcloud.errors import NodeError
from hvdcloud.providers.gce.money.prices import Table
from hvdcloud.providers.gce.money.refresh import table_of
from tests.standins.billing.skus import catalog_skus, sku


def entries() -> list[dict[str, Any]]:
    return catalog_skus()


def table(skus: list[dict[str, Any]]) -> Table:
    return table_of(skus, today=date(2026, 11, 21))


def without(*words: str) -> list[dict[str, Any]]:
    return [each for each in entries() if not any(word in each["description"] for word in words)]


def test_a_machine_costs_the_sum_of_its_parts() -> None:
    found = table(entries()).regions["us-central1"]
    assert found["n1-vcpu"] == (0.031611, 0.01115)
    assert found["nvidia-tesla-t4"] == (0.36, 0.14)
    # 8 x 0.024988 + 32 x 0.002927 + 0.560040239; 8 x 0.013 + 32 x 0.0019081 + 0.31481
    assert found["g2-standard-8"] == (0.853608239, 0.4798692)
    # 12 x 0.031611 + 170 x 0.004237 + 3.92808 + 375 GB of local SSD at 0.08 a month
    assert found["a2-ultragpu-1g"][0] == 5.068797890
    # Free for the first hours of a month.
    assert found["address"] == (0.005, 0.0025)


def test_every_region_that_has_machines_has_its_prices() -> None:
    found = table(entries()).regions
    assert set(found) == {"us-central1", "us-east1", "us-west1", "europe-west4"}
    assert found["us-east1"]["nvidia-tesla-t4"] == found["us-central1"]["nvidia-tesla-t4"]
    assert found["europe-west4"]["nvidia-tesla-t4"] == (0.385, 0.1925)
    assert found["europe-west4"]["disk-gb-month"] == (0.11, 0.11)
    assert "a3-highgpu-8g" not in found["us-east1"]
    assert "nvidia-tesla-v100" not in table(without("Tesla V100")).main


def test_what_only_looks_like_ours_changes_nothing() -> None:
    ours = without(
        *("Commitment", "Reserved", "DWS", "Calendar", "Plus", "Mega", "Sole Tenancy", "N2 ", "G2 Custom", "Extended"),
        *("Regional Balanced", "Hyperdisk", "SSD backed PD", "Static Ip", "Atlantis"),
    )
    assert len(entries()) - len(ours) == 17
    odd: list[dict[str, Any]] = [{}, {"description": "Nvidia L4 GPU running in Americas"}, {"pricingInfo": []}]
    assert table(ours).regions == table([*entries(), *odd]).regions


def test_a_price_in_another_unit_or_currency_is_not_taken_and_of_two_the_higher_one() -> None:
    l4 = "Nvidia L4 GPU running in Americas"
    euro, daily = sku(l4, "0.7"), sku(l4, "12", unit="d")
    euro["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "EUR"
    assert table([*without(l4), euro, daily]).main["g2-standard-8"][0] is None
    iowa = sku("Nvidia L4 GPU running in Iowa", "0.60", regions=("us-central1",), group="GPU")
    # 0.293568 for its vCPUs and memory
    assert table([iowa, *entries()]).main["g2-standard-8"][0] == pytest.approx(0.893568)


@pytest.mark.parametrize(
    ("skus", "why"),
    [
        ([], "it has 0 of the"),
        (without("Instance Core"), "of the"),
        (
            [*without("Nvidia Tesla V100 GPU running"), sku("Nvidia Tesla V100 GPU running in Americas", "24.9")],
            "nvidia-tesla-v100 costs \\$24.9 in us-central1 and cost \\$2.48 on 2026-07-30",
        ),
    ],
    ids=["empty", "no machines", "ten times"],
)
def test_prices_that_cannot_be_right_make_no_table(skus: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(NodeError, match=why):
        table(skus)
