"""What a node costs, by the dated table."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.money import catalog, prices

UNPRICED = {"nvidia-h200-141gb", "nvidia-b200", "nvidia-rtx-pro-6000"}


def hourly(machine_type: str, **changes: Any) -> float:
    of_kind = {key: changes.pop(key) for key in ("gpu_type", "gpu_count", "provisioning") if key in changes}
    kind = catalog.NodeKind(machine_type=machine_type, **of_kind)
    return prices.node_dollars_per_hour(kind, **{"disk_gb": 0, "external_ip": False, **changes})


def test_gpus_disk_and_address_are_added() -> None:
    gpu = {"gpu_type": "nvidia-tesla-t4", "gpu_count": 2}
    assert hourly("n1-standard-8", **gpu) == pytest.approx(0.379998 + 0.70)
    assert hourly("n1-standard-8", **gpu, provisioning="spot") == pytest.approx(0.13402 + 0.35)
    assert hourly("n1-standard-8", disk_gb=730) == pytest.approx(0.379998 + 0.10)
    assert hourly("n1-standard-8", external_ip=True) == pytest.approx(0.379998 + 0.005)


def test_every_machine_type_has_a_price_and_spot_is_cheaper() -> None:
    unknown = {machine.name for machine in catalog.machines().values() if machine.gpu_type in UNPRICED}
    assert len(unknown) == 6
    for name in catalog.machines().keys() - unknown:
        assert 0 < hourly(name, provisioning="spot") < hourly(name), name
    for gpu in [gpu.name for gpu in catalog.gpus().values() if gpu.limits]:
        with_gpu = {"gpu_type": gpu, "gpu_count": 1}
        assert 0 < hourly("n1-standard-8", **with_gpu, provisioning="spot") < hourly("n1-standard-8", **with_gpu), gpu


def test_an_unknown_price_is_not_zero() -> None:
    with pytest.raises(UsageError, match="nvidia-tesla-p100"):
        hourly("n1-standard-8", gpu_type="nvidia-tesla-p100", gpu_count=1)


def refreshed(**changes: Any) -> prices.Table:
    own = prices.shipped().model_dump()
    dear = {name: [price and 2 * price for price in pair] for name, pair in own["regions"]["us-central1"].items()}
    regions = {**own["regions"], "europe-west4": {**dear, "nvidia-tesla-v100": [4.96, None]}}
    return prices.Table.model_validate({**own, "as_of": date(2026, 11, 20), "regions": regions, **changes})


def test_a_refreshed_table_has_the_prices_of_its_regions(state_root: Path) -> None:
    prices.save(refreshed())
    assert prices.table().as_of == date(2026, 11, 20)
    assert sorted(prices.table().regions) == ["europe-west4", "us-central1"]
    assert prices.knows("europe-west4")
    assert not prices.knows("asia-east1")
    one, two = hourly("n1-standard-8"), hourly("n1-standard-8", region="europe-west4")
    assert two == pytest.approx(2 * one)
    # A region that is not in it costs what the main one does.
    assert hourly("n1-standard-8", region="asia-east1") == one
    # 0.60 GB-months of 0.20; an address
    assert prices.disk_dollars_per_hour(disk_gb=438, region="europe-west4") == pytest.approx(0.12)
    assert hourly("n1-standard-8", region="europe-west4", external_ip=True) == pytest.approx(two + 0.01)
    # The next one counts at once.
    prices.save(refreshed(regions=prices.shipped().model_dump()["regions"]))
    assert not prices.knows("europe-west4")


def test_a_figure_that_a_region_lacks_is_the_main_region_s(state_root: Path) -> None:
    prices.save(refreshed())
    v100 = {"gpu_type": "nvidia-tesla-v100", "gpu_count": 1}
    n1 = {"provisioning": "spot", "region": "europe-west4"}
    assert hourly("n1-standard-8", **v100, **n1) == pytest.approx(hourly("n1-standard-8", **n1) + 1.0885)


def test_a_file_that_is_no_table_is_left_aside(state_root: Path) -> None:
    free = refreshed().model_dump(mode="json")
    free["regions"]["europe-west4"]["nvidia-l4"] = [0, None]
    state_root.mkdir()
    contents = [b"", b"\xff\xfe", b"[]", b"{", b'{"as_of": 2}', b"[" * 100_000]
    for content in [*contents, json.dumps(free).encode()]:
        (state_root / "prices.json").write_bytes(content)
        assert hourly("n1-standard-8") == pytest.approx(0.379998)
        assert prices.table() == prices.shipped()
    (state_root / "prices.json").unlink()
    (state_root / "prices.json").mkdir()
    assert prices.table() == prices.shipped()
