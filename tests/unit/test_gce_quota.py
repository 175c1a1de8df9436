"""Whether the quotas have room for all nodes, before the first is created."""

from __future__ import annotations

from typing import Any

from hvdcloud.providers.gce.capacity.places import Available
from tests.support.gce_requests import settings

REGION = "us-central1"
PROJECT = {"GPUS_ALL_REGIONS": 100, "CPUS_ALL_REGIONS": 1000}


def quotas(limits: dict[str, int], usage: int = 0) -> list[dict[str, Any]]:
    return [{"metric": metric, "limit": float(limit), "usage": float(usage)} for metric, limit in limits.items()]


def short(regional: dict[str, int], project: dict[str, int] | None = None, nodes: int = 4, **changes: Any) -> str:
    regional_quotas = {REGION: quotas(regional)}
    project_quotas = quotas(PROJECT if project is None else project)
    available = Available(regional_quotas=regional_quotas, project_quotas=project_quotas)
    return available.short(settings(**changes), nodes=nodes, region=REGION)


def test_everything_that_all_nodes_take_is_counted() -> None:
    none = {"GPUS_ALL_REGIONS": 0, "CPUS_ALL_REGIONS": 0}
    assert short({}, none) == "CPUS_ALL_REGIONS 32 needed, 0 of 0 free"
    assert short({}, {"GPUS_ALL_REGIONS": 0}, gpu_count=2) == "GPUS_ALL_REGIONS 8 needed, 0 of 0 free"
    assert short({"NVIDIA_T4_GPUS": 3}) == "NVIDIA_T4_GPUS 4 needed, 3 of 3 free in us-central1"
    assert short({"NVIDIA_T4_GPUS": 0}, {"GPUS_ALL_REGIONS": 0}, gpu_type=None) == ""


def test_what_is_used_is_not_free() -> None:
    available = Available(regional_quotas={REGION: quotas({"NVIDIA_T4_GPUS": 6}, usage=3)})
    found = available.short(settings(), nodes=4, region=REGION)
    assert found == "NVIDIA_T4_GPUS 4 needed, 3 of 6 free in us-central1"


def test_what_the_api_does_not_tell_is_not_short() -> None:
    assert Available().short(settings(), nodes=4, region=REGION) == ""
    assert short({}, {}) == ""
    assert short({}, machine_type="a3-highgpu-8g", nodes=1) == ""


def test_spot_takes_from_the_preemptible_quota_and_from_the_standard_one() -> None:
    held = {"NVIDIA_T4_GPUS": 1, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}
    assert short(held, provisioning="spot") == ""
    assert short(held, provisioning="standard").startswith("NVIDIA_T4_GPUS 4 needed, 1 of 1 free")
    assert short({"NVIDIA_T4_GPUS": 1, "PREEMPTIBLE_NVIDIA_T4_GPUS": 2}, provisioning="spot") != ""
    assert short({"PREEMPTIBLE_NVIDIA_H100_GPUS": 2}, provisioning="spot", machine_type="a3-highgpu-8g", nodes=1) != ""
