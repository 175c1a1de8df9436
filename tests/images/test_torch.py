"""The torch images for GPUs, on a machine that need not have one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ImageError
from hvdcloud.image.build.builder import Options, build
from hvdcloud.image.engine_reports import BuildEvent
from hvdcloud.image.plan import versions
from tests.images import fatbinary
from tests.images.conftest import Build
from tests.images.contents import cuda_libraries, file_from, files_named, image_bytes, inside, package_bytes
from tests.images.donors import compiled_with, of_debian, of_this_machine
from tests.support.harness import until

ROWS = [row for row in versions.ROWS if (row.framework, row.device) == ("torch", "cuda") and row.horovod]
HOROVOD = "/opt/venv/lib/python3.11/site-packages/horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
DRIVER_VERSION = "import ctypes; v = ctypes.c_int(); ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(v)); "
DRIVER_VERSION += "print('driver', v.value)"

pytestmark = [
    pytest.mark.engine,
    # Two cores need a quarter of an hour to compile Horovod.
    pytest.mark.timeout(3600),
    pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.version}-cuda{row.cuda}"),
]


def test_it_starts_without_a_gpu_with_nccl_mpi_and_gloo(row: versions.Row, built: Build, engine: Any) -> None:
    said = inside(
        engine, built(row), "python", "-B", "/opt/hvdcloud/check_ranks.py", "gloo", "mpi",
        "--cuda", row.cuda, "--nccl", row.nccl, "--capabilities", " ".join(row.capabilities),
    )  # fmt: skip
    assert f"CUDA {row.cuda}" in said
    assert "Horovod works with Gloo: two ranks summed a tensor of torch" in said
    assert "Horovod works with MPI: two ranks summed a tensor of torch" in said
    report = inside(engine, built(row), "horovodrun", "--check-build")
    operations = report.partition("Available Tensor Operations:")[2]
    assert {"NCCL", "MPI", "Gloo"} <= set(re.findall(r"\[X\] (\w+)", operations))


def test_every_cuda_library_is_there_once_and_is_torchs(row: versions.Row, built: Build, engine: Any) -> None:
    loaded = cuda_libraries(engine, built(row), "horovod.torch")
    assert {"libnccl", "libcudart", "libcudnn", "libcublas"} <= loaded.keys()
    assert {name: paths for name, paths in loaded.items() if len(paths) > 1} == {}
    # Where NVIDIA's wheels put them; one of them is not below nvidia/.
    wheels = tuple(f"/opt/venv/lib/python3.11/site-packages/{folder}/" for folder in ("nvidia", "cusparselt"))
    assert [paths[0] for paths in loaded.values() if not paths[0].startswith(wheels)] == []
    assert len(files_named(engine, built(row), "libcudart.so*", "libcudart_static.a")) == 1
    assert len(files_named(engine, built(row), "libnccl*")) == 1


def test_horovods_own_kernels_run_on_every_gpu_that_the_row_names(
    row: versions.Row, built: Build, engine: Any, tmp_path: Path
) -> None:
    compiled, ptx = fatbinary.capabilities(file_from(engine, built(row), HOROVOD, tmp_path))
    assert compiled == set(row.capabilities)
    assert ptx == {row.capabilities[-1]}


def test_no_compiler_and_no_toolkit_are_in_it(row: versions.Row, built: Build, engine: Any) -> None:
    assert files_named(engine, built(row), "nvcc", "cicc", "g++*", "cc1plus", "libcudadevrt.a", "nccl.h") == []


def test_it_is_little_more_than_its_python_packages(row: versions.Row, built: Build, engine: Any) -> None:
    whole, packages = image_bytes(engine, built(row)), package_bytes(engine, built(row))
    assert whole <= 1.08 * packages, f"{whole / 1e9:.2f} GB, of which {packages / 1e9:.2f} GB are Python packages"


def test_a_container_with_gpus_asks_nvidias_toolkit_for_what_cuda_needs(
    row: versions.Row, built: Build, engine: Any
) -> None:
    environment = inside(engine, built(row), "env").splitlines()
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(environment)


def test_a_rank_over_ssh_finds_the_driver_that_container_optimized_os_mounts(
    row: versions.Row, built: Build, engine: Any, driver: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    mount = {str(driver): {"bind": "/usr/local/nvidia/lib64", "mode": "ro"}}
    node = engine.containers.run(
        built(row), environment={"HVDCLOUD_AUTHORIZED_KEY": public}, volumes=mount, detach=True
    )
    try:
        until(lambda: '"ready"' in node.logs().decode() or None, what="the node's sshd")
        node.reload()
        address = node.attrs["NetworkSettings"]["IPAddress"]
        ssh = [
            "ssh", "-i", str(key), "-p", "2222", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "LogLevel=ERROR", "-o", "BatchMode=yes", f"root@{address}",
        ]  # fmt: skip
        python = f'/opt/venv/bin/python -c "{DRIVER_VERSION}"'
        done = subprocess.run([*ssh, f"env; {python}"], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert "LD_LIBRARY_PATH" not in done.stdout
        assert "driver 12345" in done.stdout
    finally:
        node.remove(force=True)


def test_a_container_that_is_no_node_finds_the_driver_too(
    row: versions.Row, built: Build, engine: Any, driver: Path
) -> None:
    mount = {str(driver): {"bind": "/usr/local/nvidia/lib64", "mode": "ro"}}
    assert "driver 12345" in inside(engine, built(row), "python", "-c", DRIVER_VERSION, volumes=mount)


def test_a_donor_newer_than_torchs_cuda_is_refused(row: versions.Row, engine: Any, tmp_path: Path) -> None:
    donors = [donor for donor in (of_this_machine(engine), of_debian(engine)) if donor is not None]
    newer = [donor for donor in donors if int(donor.cuda.partition(".")[0]) > int(row.cuda.partition(".")[0])]
    if not newer:
        pytest.skip(f"no toolkit here is newer than CUDA {row.cuda}")
    output: list[str] = []

    def keep(event: BuildEvent) -> None:
        output.append(event.text)

    config = ImageConfig(device="cuda", version=row.version, requirements=None)
    with compiled_with(row, newer[0].reference), pytest.raises(ImageError):
        build(config, project_dir=tmp_path, options=Options(progress=keep))
    assert any("Horovod would need a newer driver than torch" in line for line in output), output[-20:]
