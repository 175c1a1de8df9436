"""What the catalogue knows of machine types and GPUs, and what it refuses."""

from __future__ import annotations

from datetime import date

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.money import catalog

TODAY = date(2026, 11, 20)


def problems(machine_type: str, gpu_type: str | None, count: int, today: date = TODAY) -> list[str]:
    return [problem.message for problem in catalog.check(machine_type, gpu_type, count, today=today)]


def test_machine_types_have_their_documented_sizes() -> None:
    machine = catalog.machine("n1-standard-8")
    assert (machine.vcpus, machine.memory_gb, machine.gpu_type, machine.takes_gpus) == (8, 30, None, True)
    machine = catalog.machine("a2-highgpu-4g")
    assert (machine.vcpus, machine.memory_gb, machine.gpu_type, machine.gpu_count) == (48, 340, "nvidia-tesla-a100", 4)
    assert not machine.takes_gpus


@pytest.mark.parametrize("name", ["custom-6-20480", "n1-custom-6-20480"])
def test_a_custom_type_has_its_size_in_its_name(name: str) -> None:
    machine = catalog.machine(name)
    assert (machine.name, machine.vcpus, machine.memory_gb, machine.cpu_quota) == ("custom-6-20480", 6, 20, "CPUS")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("custom-3-10240", "1 or an even number"),
        ("custom-0-1024", "1 or an even number"),
        ("custom-2-4000", "steps of 256 MB"),
        ("custom-8-4096", "0.9 to 6.5 GB per vCPU"),
        ("custom-2-20480", "0.9 to 6.5 GB per vCPU"),
    ],
)
def test_a_custom_type_that_breaks_a_rule_is_refused_with_the_rule(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        catalog.machine(name)
    assert len(problems(name, None, 0)) == 1


def test_extended_memory_is_allowed_where_it_is_asked_for() -> None:
    assert catalog.machine("custom-2-20480-ext").memory_gb == 20


def test_an_unknown_name_is_answered_with_those_that_are_near() -> None:
    with pytest.raises(UsageError) as caught:
        catalog.machine("n1-standart-8")
    assert "n1-standard-8" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        catalog.gpu("nvidia-t4")
    assert "nvidia-tesla-t4" in caught.value.hint
    [problem] = catalog.check("n1-standard-8", "nvidia-t4", 1, today=TODAY)
    assert problem.message == "gce.gpu.type: nvidia-t4 is not in the table of GPUs"


@pytest.mark.parametrize(
    ("machine_type", "gpu_type", "count"),
    [
        ("n1-standard-8", "nvidia-tesla-t4", 1),
        ("n1-highmem-32", "nvidia-tesla-t4", 2),
        ("n1-standard-96", "nvidia-tesla-v100", 8),
        ("n1-standard-8", None, 0),
        ("n1-standard-8", "nvidia-tesla-t4", 0),
        ("custom-12-79872", "nvidia-tesla-v100", 1),
        # The default of gce.gpu does not speak of machine types that have GPUs of their own.
        ("g2-standard-8", "nvidia-tesla-t4", 1),
        ("a2-highgpu-8g", "nvidia-tesla-t4", 1),
        ("g2-standard-24", "nvidia-l4", 2),
        ("a3-highgpu-8g", None, 0),
    ],
)
def test_what_compute_engine_takes_is_let_through(machine_type: str, gpu_type: str | None, count: int) -> None:
    assert problems(machine_type, gpu_type, count) == []


@pytest.mark.parametrize(
    ("machine_type", "gpu_type", "count", "said"),
    [
        ("n1-standard-8", "nvidia-tesla-t4", 3, "3 nvidia-tesla-t4 per node is not possible"),
        (
            "n1-standard-64",
            "nvidia-tesla-t4",
            1,
            "n1-standard-64 has 64 vCPUs and 240 GB; with 1 nvidia-tesla-t4 at most 48 vCPUs and 312 GB are possible",
        ),
        (
            "n1-standard-16",
            "nvidia-tesla-v100",
            1,
            "n1-standard-16 has 16 vCPUs and 60 GB; with 1 nvidia-tesla-v100 at most 12 vCPUs and 78 GB are possible",
        ),
        ("n1-standard-8", "nvidia-tesla-p100", 1, "Compute Engine switched nvidia-tesla-p100 off on 2026-09-15"),
        ("n1-standard-8", "nvidia-tesla-k80", 1, "Compute Engine switched nvidia-tesla-k80 off on 2024-05-01"),
        ("n1-standard-8", "nvidia-l4", 1, "nvidia-l4 cannot be attached to n1-standard-8"),
        ("g2-standard-24", "nvidia-l4", 1, "g2-standard-24 comes with 2 nvidia-l4, gce.gpu asks for 1 nvidia-l4"),
        (
            "a2-highgpu-1g",
            "nvidia-tesla-v100",
            1,
            "a2-highgpu-1g comes with 1 nvidia-tesla-a100, gce.gpu asks for 1 nvidia-tesla-v100",
        ),
    ],
)
def test_what_compute_engine_refuses_is_refused_before(machine_type: str, gpu_type: str, count: int, said: str) -> None:
    assert problems(machine_type, gpu_type, count) == [said]


def test_a_machine_that_has_its_gpus_is_named_where_one_is_asked_for_on_n1() -> None:
    [problem] = catalog.check("n1-standard-8", "nvidia-a100-80gb", 1, today=TODAY)
    assert "a2-ultragpu-1g" in problem.hint


def test_the_end_of_a_gpu_is_reported_before_and_refused_from_that_day_on() -> None:
    eve, day = date(2027, 7, 31), date(2027, 8, 1)
    for gpu in ("nvidia-tesla-t4", "nvidia-tesla-p4"):
        [notice] = catalog.notices("n1-standard-8", gpu, 1, today=eve)
        assert notice.message.startswith(f"{gpu} ends 2027-08-01")
        assert "g2-standard-8" in notice.hint
        assert problems("n1-standard-8", gpu, 1, eve) == []
        assert problems("n1-standard-8", gpu, 1, day) == [f"Compute Engine switched {gpu} off on 2027-08-01"]
        assert catalog.notices("n1-standard-8", gpu, 1, today=day) == []
    assert catalog.notices("n1-standard-8", "nvidia-tesla-v100", 1, today=eve) == []
    assert catalog.notices("g2-standard-8", "nvidia-tesla-t4", 1, today=eve) == []
    assert catalog.notices("n1-standard-8", None, 0, today=eve) == []


def test_zones_are_in_the_order_to_try() -> None:
    zones = catalog.zones_with("nvidia-tesla-v100")
    assert zones[:6] == ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-b", "us-east1-c")
    assert len(zones) == len(set(zones)) == 12
    assert set(catalog.zones_with("nvidia-tesla-p4")) < set(catalog.zones_with(None))
    assert catalog.zones_with("nvidia-tesla-p100") == ()


def test_every_gpu_of_a_machine_type_is_in_the_table() -> None:
    for name in catalog._machines():
        gpu_type, count = catalog.gpus_of(name, None, 0)
        assert (gpu_type is None) == (count == 0)
        assert gpu_type is None or catalog.gpu(gpu_type).compute_capability


@pytest.mark.parametrize(
    ("machine_type", "possible"),
    [
        ("n1-standard-8", {0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 24}),
        ("custom-6-20480", {0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 24}),
        ("g2-standard-8", {0, 1}),
        ("g2-standard-24", {0, 2}),
        ("a2-highgpu-2g", {0, 2, 4, 8}),
        ("a2-ultragpu-1g", {0}),
        ("a3-highgpu-8g", {0}),
    ],
)
def test_a_machine_type_takes_so_many_local_ssds_and_no_other_number(machine_type: str, possible: set[int]) -> None:
    assert {count for count in range(25) if not catalog.local_ssd_problems(machine_type, count)} == possible


def test_a_number_of_local_ssds_that_is_not_possible_is_answered_with_those_that_are() -> None:
    [problem] = catalog.local_ssd_problems("a2-highgpu-2g", 3)
    assert problem.summary == "gce.local_ssd: a2-highgpu-2g does not take 3; write gce.local_ssd: one of 2, 4, 8"
    [problem] = catalog.local_ssd_problems("a3-highgpu-8g", 2)
    assert problem.message == "gce.local_ssd: a3-highgpu-8g brings 16 local SSDs of its own"


def test_another_machine_type_is_compared_with_the_next_number_of_local_ssds_that_it_takes() -> None:
    assert [catalog.fitting_local_ssds(each, 3) for each in ("n1-standard-8", "a2-highgpu-1g", "g2-standard-8")] == [
        3,
        4,
        1,
    ]
    assert catalog.fitting_local_ssds("a2-ultragpu-1g", 3) == 0
    assert catalog.fitting_local_ssds("n1-standard-8", 0) == 0
