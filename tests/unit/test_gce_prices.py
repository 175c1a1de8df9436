"""What a node costs, by the dated table."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from hvdcloud.providers.gce import catalog, prices


def hourly(machine_type: str, **changes: Any) -> float | None:
    bare: dict[str, Any] = {"gpu_type": None, "gpu_count": 0, "spot": False, "disk_gb": 0, "external_ip": False}
    return prices.node_dollars_per_hour(machine_type=machine_type, **{**bare, **changes})


# As the Billing Catalog had them on 2026-07-30, on demand and Spot.
CATALOG = {
    "n1-standard-1": (0.0475, 0.01675),
    "n1-standard-4": (0.189999, 0.06701),
    "n1-standard-8": (0.379998, 0.13402),
    "n1-standard-16": (0.759996, 0.26804),
    "n1-standard-32": (1.519992, 0.53608),
    "n1-highmem-8": (0.473212, 0.166888),
    "g2-standard-4": (0.70683, 0.39734),
    "g2-standard-48": (4.00167, 2.24963),
    "a2-highgpu-8g": (29.387, 15.424),
    "a2-ultragpu-1g": (5.0688, 2.7595),
    "a3-highgpu-8g": (88.49, 50.61),
}


@pytest.mark.parametrize("machine_type", CATALOG)
def test_machine_types_cost_what_the_catalog_says(machine_type: str) -> None:
    on_demand, spot = CATALOG[machine_type]
    assert hourly(machine_type) == pytest.approx(on_demand, abs=1e-4)
    assert hourly(machine_type, spot=True) == pytest.approx(spot, abs=1e-4)


def test_gpus_disk_and_address_are_added() -> None:
    gpu = {"gpu_type": "nvidia-tesla-t4", "gpu_count": 2}
    assert hourly("n1-standard-8", **gpu) == pytest.approx(0.379998 + 0.70)
    assert hourly("n1-standard-8", **gpu, spot=True) == pytest.approx(0.13402 + 0.35)
    assert hourly("n1-standard-8", disk_gb=730) == pytest.approx(0.379998 + 0.10)
    assert hourly("n1-standard-8", external_ip=True) == pytest.approx(0.379998 + 0.005)


def test_the_gpus_of_a_machine_type_are_in_its_price_already() -> None:
    assert hourly("g2-standard-8", gpu_type="nvidia-l4", gpu_count=1) == hourly("g2-standard-8")


def test_a_custom_type_costs_more_than_its_size() -> None:
    standard = hourly("n1-standard-8")
    assert standard is not None
    assert hourly("custom-8-30720") == pytest.approx(standard * 1.0494)


def test_every_machine_type_has_a_price_and_spot_is_cheaper() -> None:
    for name in catalog._machines():
        on_demand, spot = hourly(name), hourly(name, spot=True)
        assert on_demand is not None, name
        assert spot is not None, name
        assert 0 < spot < on_demand, name


def test_an_unknown_price_is_not_zero() -> None:
    assert hourly("n1-standard-8", gpu_type="nvidia-tesla-p100", gpu_count=1) is None


def test_the_table_says_when_and_where() -> None:
    assert prices.as_of() == date(2026, 7, 30)
    assert prices.region() == "us-central1"
