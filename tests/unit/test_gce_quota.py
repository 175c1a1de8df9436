"""Whether the quotas have room for all nodes, before the first is created."""

from __future__ import annotations

from typing import Any

from hvdcloud.providers.gce.capacity.availability import Availability, Shortfall
from tests.support.gce_requests import settings

REGION = "us-central1"
PROJECT = {"GPUS_ALL_REGIONS": 100, "CPUS_ALL_REGIONS": 1000}


def quotas(limits: dict[str, int], usage: int = 0) -> list[dict[str, Any]]:
    return [{"metric": metric, "limit": float(limit), "usage": float(usage)} for metric, limit in limits.items()]


def short(
    regional: dict[str, int], project: dict[str, int] | None = None, nodes: int = 4, **changes: Any
) -> list[Shortfall]:
    regional_quotas = {REGION: quotas(regional)}
    project_quotas = quotas(PROJECT if project is None else project)
    available = Availability(regional_quotas=regional_quotas, project_quotas=project_quotas)
    return available.shortfalls(settings(**changes), nodes=nodes, region=REGION)


def metrics(*args: Any, **changes: Any) -> list[str]:
    return [each.metric for each in short(*args, **changes)]


def test_everything_that_all_nodes_take_is_counted() -> None:
    project = {"GPUS_ALL_REGIONS": 0, "CPUS_ALL_REGIONS": 0}
    amounts = {each.metric: each.needed for each in short({"NVIDIA_T4_GPUS": 0}, project, gpu_count=2)}
    assert amounts == {"CPUS_ALL_REGIONS": 32, "GPUS_ALL_REGIONS": 8, "NVIDIA_T4_GPUS": 8}
    assert [each.metric for each in short({"NVIDIA_T4_GPUS": 0}, project, gpu_type=None)] == ["CPUS_ALL_REGIONS"]


def test_a_quota_without_room_is_reported_with_its_numbers() -> None:
    held = quotas({"NVIDIA_T4_GPUS": 6}, usage=3)
    available = Availability(regional_quotas={REGION: held})
    [found] = available.shortfalls(settings(), nodes=4, region=REGION)
    assert found == Shortfall(metric="NVIDIA_T4_GPUS", needed=4, limit=6.0, usage=3.0, regional=True)


def test_what_the_api_does_not_tell_is_not_short() -> None:
    assert Availability().shortfalls(settings(), nodes=4, region=REGION) == []
    assert metrics({}, {}) == []
    assert metrics({}, machine_type="a3-highgpu-8g", nodes=1) == []


def test_spot_takes_from_the_preemptible_quota_or_from_the_standard_one() -> None:
    assert metrics({"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 4}, spot="all") == []
    assert metrics({"NVIDIA_T4_GPUS": 4, "PREEMPTIBLE_NVIDIA_T4_GPUS": 0}, spot="all") == []
    assert metrics({"NVIDIA_T4_GPUS": 2, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}, spot="all") == ["NVIDIA_T4_GPUS"]
    assert metrics({"NVIDIA_T4_GPUS": 2}, spot="all") == ["NVIDIA_T4_GPUS"]
    assert metrics({"PREEMPTIBLE_NVIDIA_H100_GPUS": 2}, spot="all", machine_type="a3-highgpu-8g", nodes=1) == [
        "PREEMPTIBLE_NVIDIA_H100_GPUS"
    ]


def test_a_head_on_demand_and_workers_on_spot_may_share_both() -> None:
    assert metrics({"NVIDIA_T4_GPUS": 1, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}, spot="workers") == []
    [found] = short({"NVIDIA_T4_GPUS": 1, "PREEMPTIBLE_NVIDIA_T4_GPUS": 2}, spot="workers")
    assert (found.metric, found.needed) == ("NVIDIA_T4_GPUS", 4)
