"""The TensorFlow images: those for CPUs, and the builders of those for GPUs, on a machine that need not have one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ImageError
from hvdcloud.image.build.builder import build, carry_out
from hvdcloud.image.plan import versions
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.plan.steps import plan_image
from hvdcloud.image.plan.versions import Row
from tests.images import fatbinary
from tests.images.conftest import Build
from tests.images.contents import cuda_libraries, file_from, files_named, inside
from tests.images.donors import compiled_with, donor_for

ROWS = [row for row in versions.ROWS if row.framework == "tensorflow"]
HOROVOD = "lib/python3.11/site-packages/horovod/tensorflow/mpi_lib.cpython-311-x86_64-linux-gnu.so"
CHECK = "/opt/hvdcloud/check_ranks.py"
# What makes a builder find them, as nodes do.
BUILDER = {"PATH": "/opt/venv/bin:/opt/horovod/bin:/usr/local/bin:/usr/bin:/bin"}
# What `import keras` gives, and tf.keras, in a process that was started with an empty environment, as over SSH.
KERAS = """
import importlib.util, sys, tensorflow as tf
package = tf.keras.Model.__module__.partition(".")[0]
print("tf.keras is", package, sys.modules[package].__version__)
print("import keras finds", importlib.util.find_spec("keras") and __import__("keras").__version__)
"""

# Two cores need a quarter of an hour to compile Horovod.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]
each_cpu_row = pytest.mark.parametrize("row", [row for row in ROWS if not row.cuda], ids=lambda row: row.version)
each_cuda_row = pytest.mark.parametrize("row", [row for row in ROWS if row.cuda], ids=lambda row: row.version)
Project = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Builds a row's image with requirements; returns its reference."""

    def call(row: Row, *requirements: str) -> str:
        (tmp_path / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
        config = ImageConfig.model_validate({"framework": row.framework, "version": row.version, "device": row.device})
        return build(config, project_dir=tmp_path).reference

    return call


@pytest.fixture(scope="module")
def builder(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The builder of a row for GPUs, with the best donor that can be had: what nodes run is copied out of it."""

    def call(row: Row) -> str:
        donor = donor_for(engine, wanted=row.donor, cuda=row.cuda).reference
        wanted = {"framework": row.framework, "device": row.device, "version": row.version}
        config = ImageConfig.model_validate({**wanted, "requirements": None})
        with compiled_with(row, donor):
            plan = plan_image(config, project_dir=tmp_path_factory.mktemp(row.label))
        carry_out(engine.api, plan.until(plan.steps[0]))
        return plan.steps[0].reference

    return call


@each_cpu_row
def test_two_ranks_train_a_keras_model_with_either_controller(row: Row, built: Build, engine: Any) -> None:
    said = inside(engine, built(row), "python", "-B", CHECK, "gloo", "mpi")
    for controller in ("Gloo", "MPI"):
        assert f"Horovod works with {controller}: two ranks summed a tensor of tensorflow" in said


@each_cpu_row
def test_keras_is_version_2_in_every_process(row: Row, built: Build, engine: Any) -> None:
    said = inside(engine, built(row), "env", "-i", "/opt/venv/bin/python", "-c", KERAS).splitlines()
    package, _, version = row.keras.partition(" ")
    assert f"tf.keras is {package.replace('-', '_')} {version}" in said
    assert f"import keras finds {version if package == 'keras' else None}" in said


@each_cpu_row
def test_keras_3_is_refused_before_anything_is_installed(row: Row, built: Build, project: Project) -> None:
    built(row)
    with pytest.raises(ImageError) as refused:
        project(row, "keras>=3")
    assert "image.requirements" in (refused.value.hint or "")
    assert "keras" in refused.value.message + refused.value.details


@each_cpu_row
def test_a_requirement_for_tensorflow_installs_no_other_one(
    row: Row, built: Build, project: Project, engine: Any
) -> None:
    built(row)
    image = project(row, "tensorflow", "tensorflow-cpu", "tensorflow-hub")
    own = files_named(engine, image, "libtensorflow_framework.so.2*")
    assert own == ["/opt/venv/lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2"]
    added = inside(engine, image, "sh", "-c", "ls /opt/requirements/lib/python3.11/site-packages").split()
    assert "tensorflow_hub" in added
    assert not {"tensorflow", "keras", "numpy", "google"} & set(added)
    assert "Horovod works with Gloo" in inside(engine, image, "python", "-B", CHECK, "gloo")


@each_cpu_row
def test_another_tensorflow_is_refused(row: Row, built: Build, project: Project) -> None:
    built(row)
    with pytest.raises(ImageError, match="pip") as refused:
        project(row, "tensorflow==2.14.0")
    assert "tensorflow" in refused.value.message + refused.value.details


@each_cpu_row
def test_what_only_a_compiler_needs_is_not_in_it(row: Row, built: Build, engine: Any) -> None:
    assert files_named(engine, built(row), "g++*", "cc1plus", "op_kernel.h", "libclang.so*", "libtensorflow*.a") == []


@each_cuda_row
def test_a_builder_for_gpus_starts_without_one_with_nccl_mpi_and_gloo(row: Row, builder: Build, engine: Any) -> None:
    check = dockerfiles() / "files" / "check_ranks.py"
    said = inside(
        engine, builder(row), "python", "-B", CHECK, "gloo", "mpi",
        "--cuda", row.cuda, "--nccl", row.nccl, "--capabilities", " ".join(row.capabilities),
        environment=BUILDER,
        volumes={str(check): {"bind": CHECK, "mode": "ro"}},
    )  # fmt: skip
    assert f"one NCCL {row.nccl}" in said
    assert "Horovod works with Gloo: two ranks summed a tensor of tensorflow" in said
    assert "Horovod works with MPI: two ranks summed a tensor of tensorflow" in said


@each_cuda_row
def test_every_cuda_library_is_there_once_and_is_tensorflows(row: Row, builder: Build, engine: Any) -> None:
    loaded = cuda_libraries(engine, builder(row), "horovod.tensorflow", environment=BUILDER)
    assert "libnccl" in loaded
    assert {name: paths for name, paths in loaded.items() if len(paths) > 1} == {}
    wheels = "/opt/venv/lib/python3.11/site-packages/nvidia/"
    assert [paths[0] for paths in loaded.values() if not paths[0].startswith(wheels)] == []


@each_cuda_row
def test_horovods_own_kernels_run_on_every_gpu_that_the_row_names(
    row: Row, builder: Build, engine: Any, tmp_path: Path
) -> None:
    compiled, ptx = fatbinary.capabilities(file_from(engine, builder(row), f"/opt/horovod/{HOROVOD}", tmp_path))
    assert compiled == set(row.capabilities)
    assert ptx == {row.capabilities[-1]}
