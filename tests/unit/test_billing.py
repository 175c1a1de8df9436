"""From the catalog's entries to a price table."""

from __future__ import annotations

from copy import deepcopy
from datetime import date
from typing import Any

import pytest

from hvdcloud.errors import NodeError
from hvdcloud.providers.gce.money import billing, price_table, prices
from hvdcloud.providers.gce.money.price_table import Table
from tests.standins.billing.skus import COMPUTE, STORAGE, catalog_skus, sku

TODAY = date(2026, 11, 21)
SHIPPED = price_table.shipped()


def entries() -> list[dict[str, Any]]:
    found = catalog_skus()
    return [*found[COMPUTE], *found[STORAGE]]


def table(skus: list[dict[str, Any]], *, before: Table = SHIPPED) -> Table:
    return billing.table_of(reading(skus), before=before, shipped=SHIPPED, today=TODAY)


def reading(skus: list[dict[str, Any]]) -> billing.Reading:
    found = billing.Reading()
    found.add(skus)
    return found


def without(*words: str) -> list[dict[str, Any]]:
    return [each for each in entries() if not any(word in each["description"] for word in words)]


def test_a_machine_costs_the_sum_of_its_parts() -> None:
    found = table(entries()).regions["us-central1"]
    assert found["n1-vcpu"] == (0.031611, 0.01115)
    assert found["nvidia-tesla-t4"] == (0.36, 0.14)
    # 8 x 0.024988 + 32 x 0.002927 + 0.560040239; 8 x 0.013 + 32 x 0.0019081 + 0.31481
    assert found["g2-standard-8"] == (0.853608239, 0.4798692)
    # 12 x 0.031611 + 85 x 0.004237 + 2.933908
    assert found["a2-highgpu-1g"][0] == 3.673385
    # 12 x 0.031611 + 170 x 0.004237 + 3.92808 + 375 GB of local SSD at 0.08 a month
    assert found["a2-ultragpu-1g"][0] == 5.068797890


def test_the_shipped_prices_are_such_sums_too() -> None:
    found = table(entries()).main
    for name in ("g2-standard-8", "g2-standard-48", "a2-highgpu-1g", "a2-highgpu-8g", "a2-ultragpu-1g"):
        on_demand, shipped = found[name][0], SHIPPED.main[name][0]
        assert on_demand == pytest.approx(shipped, rel=1e-4), name


def test_what_is_free_at_first_counts_at_what_it_costs_then() -> None:
    found = table(entries()).main
    assert found["address"] == (0.005, 0.0025)
    assert found["bucket-gb-month"] == (0.02, 0.02)


def test_every_region_that_an_entry_names_has_its_price() -> None:
    found = table(entries()).regions
    assert set(found) == {"us-central1", "us-east1", "us-west1", "europe-west4"}
    assert found["us-east1"]["nvidia-tesla-t4"] == found["us-central1"]["nvidia-tesla-t4"]
    assert found["europe-west4"]["nvidia-tesla-t4"] == (0.385, 0.1925)
    assert found["europe-west4"]["disk-gb-month"] == (0.11, 0.11)
    assert found["europe-west4"]["address"] == (0.005, 0.0025)
    assert "a3-highgpu-8g" not in found["us-east1"]


def test_what_only_looks_like_ours_changes_nothing() -> None:
    ours = without(
        *("Commitment", "Reserved", "DWS", "Calendar", "Plus", "Mega", "Sole Tenancy", "N2 ", "G2 Custom", "Extended"),
        *("Regional Balanced", "Hyperdisk", "SSD backed PD", "Static Ip", "Atlantis", "-region", "Nearline", "Class A"),
    )
    assert len(entries()) - len(ours) == 22
    assert table(ours).regions == table(entries()).regions


def test_a_price_in_another_unit_or_currency_is_not_taken() -> None:
    euro, daily = (
        sku("Nvidia L4 GPU running in Americas", "0.5"),
        sku("Nvidia L4 GPU running in Americas", "12", unit="d"),
    )
    euro["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "EUR"
    rest = without("Nvidia L4 GPU running in Americas")
    found = table([*rest, euro, daily])
    assert "g2-standard-8 (on demand)" in found.kept


def test_of_two_prices_the_higher_one_counts_and_is_reported() -> None:
    found = reading([*entries(), sku("Nvidia L4 GPU running in Iowa", "0.57", regions=("us-central1",), group="GPU")])
    assert found.rate("nvidia-l4", spot=False, region="us-central1") == pytest.approx(billing.Decimal("0.57"))
    assert found.differing == {("nvidia-l4", False, "us-central1")}


def test_what_the_catalog_lacks_stays_as_it_was_and_is_reported() -> None:
    found = table(entries())
    assert found.kept == ["nvidia-tesla-p4 (on demand and Spot)"]
    assert found.main["nvidia-tesla-p4"] == (0.60, 0.2236)
    assert "nvidia-tesla-p4" not in found.regions["us-east1"]


def free(description: str) -> list[dict[str, Any]]:
    changed = deepcopy(entries())
    for each in changed:
        if each["description"] == description:
            for tier in each["pricingInfo"][0]["pricingExpression"]["tieredRates"]:
                tier["unitPrice"] = {"currencyCode": "USD", "units": "0", "nanos": 0}
    return changed


@pytest.mark.parametrize(
    ("skus", "why"),
    [
        (free("Nvidia Tesla T4 GPU running in Americas"), "nvidia-tesla-t4 on demand costs nothing in us-central1"),
        ([], "it has 0 of the"),
        (without("Instance Core"), "of the"),
        (
            [*without("Nvidia Tesla V100 GPU running"), sku("Nvidia Tesla V100 GPU running in Americas", "24.9")],
            "nvidia-tesla-v100 on demand costs \\$24.9 in us-central1 and cost \\$2.48 on 2026-07-30",
        ),
    ],
    ids=["free", "empty", "no machines", "ten times"],
)
def test_prices_that_cannot_be_right_make_no_table(skus: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(NodeError, match=why):
        table(skus)


def test_a_region_that_is_not_open_yet_does_not_stand_in_the_way() -> None:
    assert ("nvidia-tesla-t4", False, "atlantis-north1") in reading(entries()).free
    assert "atlantis-north1" not in table(entries()).regions


def test_the_difference_is_reported_by_nodes() -> None:
    changed, elsewhere = billing.compare(SHIPPED, table(entries()))
    by_name = {what: (was, now) for what, was, now in changed}
    # 8 x 0.031611 + 30 x 0.004237 = 0.379998, and the GPU
    assert by_name["n1-standard-8 + nvidia-tesla-t4"] == pytest.approx((0.729998, 0.739998))
    assert "n1-standard-8" not in by_name
    assert elsewhere == 0


def test_entries_without_prices_or_names_are_passed_over() -> None:
    odd: list[dict[str, Any]] = [{}, {"description": "Nvidia L4 GPU running in Americas"}, {"pricingInfo": []}]
    assert table([*entries(), *odd]).regions == table(entries()).regions


def test_every_machine_and_gpu_that_can_be_had_is_looked_for() -> None:
    found = table(entries()).main
    assert set(SHIPPED.main) == set(found)
    assert prices.region() in SHIPPED.regions
