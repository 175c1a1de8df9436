"""What the catalogue knows of machine types and GPUs, and what it refuses."""

from __future__ import annotations

from datetime import date

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.image.plan import versions
from hvdcloud.providers.gce.money import catalog

TODAY = date(2026, 11, 20)


def problems(machine_type: str, gpu_type: str | None, count: int, today: date = TODAY) -> list[str]:
    found = catalog.problem(machine_type, gpu_type, count, today=today)
    return [found.message] if found else []


def test_an_unknown_name_is_answered_with_those_that_are_near() -> None:
    with pytest.raises(UsageError) as caught:
        catalog.machine("n1-standart-8")
    assert "n1-standard-8" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        catalog.gpu("nvidia-t4")
    assert "nvidia-tesla-t4" in caught.value.hint
    assert caught.value.message == "gce.gpu.type: nvidia-t4 is not in the table of GPUs"


@pytest.mark.parametrize(
    ("machine_type", "gpu_type", "count", "said"),
    [
        ("n1-standard-8", "nvidia-tesla-t4", 3, "3 nvidia-tesla-t4 cannot be attached to n1-standard-8"),
        ("n1-standard-64", "nvidia-tesla-t4", 1, "1 nvidia-tesla-t4 cannot be attached to n1-standard-64"),
        ("n1-standard-8", "nvidia-l4", 1, "1 nvidia-l4 cannot be attached to n1-standard-8"),
        ("g2-standard-24", "nvidia-l4", 1, "g2-standard-24 comes with 2 nvidia-l4, gce.gpu asks for 1 nvidia-l4"),
    ],
)
def test_what_compute_engine_refuses_is_refused_before(machine_type: str, gpu_type: str, count: int, said: str) -> None:
    assert problems(machine_type, gpu_type, count) == [said]


def test_a_gpu_is_refused_from_the_day_on_which_it_ends() -> None:
    assert catalog.gpu("nvidia-tesla-t4").ends == date(2027, 8, 1)
    assert problems("n1-standard-8", "nvidia-tesla-t4", 1, date(2027, 7, 31)) == []
    problem = catalog.problem("n1-standard-8", "nvidia-tesla-t4", 1, today=date(2027, 8, 1))
    assert problem is not None
    assert problem.message == "Compute Engine switched nvidia-tesla-t4 off on 2027-08-01"
    assert "g2-standard-8" in problem.hint


def test_zones_are_in_the_order_to_try() -> None:
    v100 = catalog.zones_with("nvidia-tesla-v100")
    assert v100[:5] == (*(f"us-central1-{zone}" for zone in "abcf"), "us-east1-b")
    assert set(v100) < set(catalog.zones_with(None))


def test_every_machine_type_boots_an_image_that_its_notes_do_not_warn_of_with_a_driver_for_its_gpus() -> None:
    for name, machine in catalog.machines().items():
        # https://docs.cloud.google.com/container-optimized-os/docs/release-notes/m125, read on 2026-04-08
        assert machine.vm_image == ("cos-121-lts" if name.startswith("a3-") else "cos-125-lts"), name
        assert machine.driver == "R580", name


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_up_refuses_a_gpu_that_no_image_has_code_for_and_names_the_image_that_has(framework: str) -> None:
    rows = [row for row in versions.ROWS if (row.framework, row.device) == (framework, "cuda")]
    for gpu in catalog.gpus().values():
        refused = []
        for row in rows:
            try:
                versions.check_fits(row, gpu=gpu.name, capability=gpu.compute_capability)
            except UsageError as no:
                refused.append(no)
        hopper_or_older = float(gpu.compute_capability) < 10
        assert (len(refused) < len(rows)) == (framework == "torch" or hopper_or_older), gpu.name
        for error in refused:
            assert "set image.version: " in error.hint or "take another GPU" in error.hint
