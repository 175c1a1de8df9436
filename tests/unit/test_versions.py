"""Which images can be built, and on which GPUs they run."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.image.plan import versions
from hvdcloud.image.plan.context import dockerfiles, locked
from hvdcloud.image.plan.versions import ROWS, Row, check_fits, find
from hvdcloud.providers.gce.money import catalog

CUDA_ROWS = [row for row in ROWS if row.cuda]
GPUS = [
    *("nvidia-tesla-t4", "nvidia-tesla-v100", "nvidia-l4"),
    *("nvidia-tesla-a100", "nvidia-a100-80gb", "nvidia-h100-80gb"),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
each_cuda_row = pytest.mark.parametrize("row", CUDA_ROWS, ids=lambda row: row.label)


@each_row
def test_a_rows_files_are_there_and_pin_each_project_once(row: Row) -> None:
    locks = dockerfiles() / "locks"
    for name in filter(None, (row.lock, row.toolkit)):
        projects = Counter(project for project, _ in locked(locks / name))
        assert {project: count for project, count in projects.items() if count > 1} == {}
    for patch in row.patches:
        assert (dockerfiles() / "patches" / f"horovod-{row.horovod}-{patch}.patch").is_file()


@each_cuda_row
def test_a_cuda_row_says_what_it_is_compiled_with_and_for(row: Row) -> None:
    assert row.device == "cuda"
    assert bool(row.donor) + bool(row.toolkit) == bool(row.horovod)
    numbers = [tuple(int(part) for part in each.split(".")) for each in row.capabilities]
    assert numbers, "no GPU would run it"
    assert all(low < high for low, high in pairwise(numbers))
    # Horovod is compiled against exactly this NCCL.
    nccl = {name: version for name, version in locked(dockerfiles() / "locks" / row.lock) if "nvidia-nccl" in name}
    assert list(nccl.values()) == [row.nccl]


@pytest.mark.parametrize("gpu", GPUS)
def test_the_default_torch_image_runs_on_every_gpu_that_compute_engine_still_has(gpu: str) -> None:
    check_fits(find("torch", "cuda"), gpu=gpu, capability=catalog.gpu(gpu).compute_capability)


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("8.6", True), ("8.9", True), ("8.5", False), ("9.0", False), ("8.10", True), ("7.6", False)],
)
def test_code_runs_on_its_own_major_version_from_its_minor_version_on(
    monkeypatch: pytest.MonkeyPatch, capability: str, runs: bool
) -> None:
    row = Row(
        framework="torch", version="0", device="cuda", package="torch==0", lock="", cuda="1.0",
        capabilities=("7.7", "8.6"),
    )  # fmt: skip
    monkeypatch.setattr(versions, "ROWS", (row,))
    if runs:
        check_fits(row, gpu="x", capability=capability)
    else:
        with pytest.raises(UsageError):
            check_fits(row, gpu="x", capability=capability)
