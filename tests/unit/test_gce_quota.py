"""Whether the quotas have room for all nodes, before the first is created."""

from __future__ import annotations

from typing import Any

from hvdcloud.providers.gce.capacity.quota import Shortfall, needs, shortfalls
from tests.support.gce_requests import settings

ROOMY = {"INSTANCES": 1000, "SSD_TOTAL_GB": 10000, "CPUS": 1000, "IN_USE_ADDRESSES": 100, "PREEMPTIBLE_CPUS": 0}
PROJECT = {"GPUS_ALL_REGIONS": 100, "CPUS_ALL_REGIONS": 1000}


def quotas(limits: dict[str, int], usage: int = 0) -> list[dict[str, Any]]:
    return [{"metric": metric, "limit": float(limit), "usage": float(usage)} for metric, limit in limits.items()]


def short(
    regional: dict[str, int], project: dict[str, int] | None = None, nodes: int = 4, **changes: Any
) -> list[Shortfall]:
    return shortfalls(
        needs(settings(**changes), nodes=nodes),
        regional_quotas=quotas({**ROOMY, **regional}),
        project_quotas=quotas(PROJECT if project is None else project),
    )


def metrics(*args: Any, **changes: Any) -> list[str]:
    return [each.metric for each in short(*args, **changes)]


def test_everything_that_all_nodes_take_is_counted() -> None:
    amounts = {need.metric: need.amount for need in needs(settings(gpu_count=2), nodes=4)}
    assert amounts == {
        "INSTANCES": 4,
        "SSD_TOTAL_GB": 400,
        "CPUS": 32,
        "CPUS_ALL_REGIONS": 32,
        "IN_USE_ADDRESSES": 4,
        "GPUS_ALL_REGIONS": 8,
        "NVIDIA_T4_GPUS": 8,
    }


def test_what_a_cluster_does_not_use_is_not_counted() -> None:
    amounts = {need.metric for need in needs(settings(gpu_type=None, ssh_source="iap"), nodes=4)}
    assert amounts == {"INSTANCES", "SSD_TOTAL_GB", "CPUS", "CPUS_ALL_REGIONS"}
    assert "A2_CPUS" in {need.metric for need in needs(settings(machine_type="a2-highgpu-1g"), nodes=1)}


def test_a_quota_without_room_is_reported_with_its_numbers() -> None:
    [found] = shortfalls(needs(settings(), nodes=4), regional_quotas=quotas({"CPUS": 40}, usage=10), project_quotas=[])
    assert found == Shortfall(metric="CPUS", needed=32, limit=40.0, usage=10.0, regional=True)


def test_a_new_project_has_no_gpus_at_all() -> None:
    [found] = short({"NVIDIA_T4_GPUS": 4}, {"GPUS_ALL_REGIONS": 0, "CPUS_ALL_REGIONS": 32})
    assert (found.metric, found.regional) == ("GPUS_ALL_REGIONS", False)


def test_what_the_api_does_not_tell_is_not_short() -> None:
    assert shortfalls(needs(settings(), nodes=4), regional_quotas=[], project_quotas=[]) == []
    assert metrics({}, {}) == []
    assert metrics({}, machine_type="a3-highgpu-8g", nodes=1) == []


def test_spot_takes_from_the_preemptible_quota_once_there_is_one() -> None:
    assert metrics({"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 4}, spot="all") == []
    assert metrics({"NVIDIA_T4_GPUS": 9, "PREEMPTIBLE_NVIDIA_T4_GPUS": 2}, spot="all") == ["PREEMPTIBLE_NVIDIA_T4_GPUS"]
    assert metrics({"NVIDIA_T4_GPUS": 9, "CPUS": 8, "PREEMPTIBLE_CPUS": 64}, spot="all") == []


def test_spot_takes_from_the_standard_quota_where_none_was_granted() -> None:
    assert metrics({"NVIDIA_T4_GPUS": 4, "PREEMPTIBLE_NVIDIA_T4_GPUS": 0}, spot="all") == []
    assert metrics({"NVIDIA_T4_GPUS": 2, "PREEMPTIBLE_NVIDIA_T4_GPUS": 0}, spot="all") == ["NVIDIA_T4_GPUS"]
    assert metrics({"NVIDIA_T4_GPUS": 2}, spot="all") == ["NVIDIA_T4_GPUS"]
    assert metrics({"PREEMPTIBLE_NVIDIA_H100_GPUS": 2}, spot="all", machine_type="a3-highgpu-8g", nodes=1) == [
        "PREEMPTIBLE_NVIDIA_H100_GPUS"
    ]


def test_nodes_that_live_a_week_at_most_may_take_from_either() -> None:
    both = {"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 4}
    assert metrics(both) == []
    assert metrics(both, max_run_seconds=8 * 86400) == ["NVIDIA_T4_GPUS"]
    assert metrics({"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}) == ["NVIDIA_T4_GPUS"]
    assert metrics({"NVIDIA_T4_GPUS": 4, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}) == []


WORKERS = {"spot": "workers", "max_run_seconds": 8 * 86400}
"""The head lives too long to take from the preemptible quota."""


def test_the_head_takes_from_the_standard_quota_and_the_workers_from_the_preemptible_one() -> None:
    granted = {"NVIDIA_T4_GPUS": 1, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3, "CPUS": 8, "PREEMPTIBLE_CPUS": 24}
    assert metrics(granted, **WORKERS) == []
    for metric, amount in granted.items():
        [found] = short({**granted, metric: amount - 1}, **WORKERS)
        assert (found.metric, found.needed) == (metric, amount)


def test_where_no_preemptible_quota_was_granted_all_of_them_take_from_the_standard_one() -> None:
    assert metrics({"NVIDIA_T4_GPUS": 4, "CPUS": 32}, **WORKERS) == []
    found = short({"NVIDIA_T4_GPUS": 3, "CPUS": 31}, **WORKERS)
    assert [(each.metric, each.needed) for each in found] == [("CPUS", 32), ("NVIDIA_T4_GPUS", 4)]


def test_a_head_that_may_take_from_either_gets_what_the_workers_leave() -> None:
    week = {"spot": "workers", "max_run_seconds": 7 * 86400}
    assert metrics({"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 4}, **week) == []
    assert metrics({"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}, **week) == ["NVIDIA_T4_GPUS"]
    assert metrics({"NVIDIA_T4_GPUS": 1, "PREEMPTIBLE_NVIDIA_T4_GPUS": 3}, **week) == []
