"""The image as the engine really builds it, and what is and is not in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.build.builder import BuildResult, Options, build, find_plan
from hvdcloud.image.engine_reports import BuildEvent
from hvdcloud.image.plan.custom_base import Needs
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.engine

Build = Callable[..., BuildResult]

NATIVE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", 0, -1, methods};
PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&module); }
"""
SETUP = (
    "from setuptools import Extension, setup\nsetup(name='native', ext_modules=[Extension('native', ['native.c'])])\n"
)
# No requirement may bring any of these in, and nothing else needs them.
COMPILERS = ("gcc", "cc", "g++", "c++", "make", "cmake", "pip", "pip3")


@pytest.fixture
def small(tmp_path: Path, engine: Any, image: str) -> Iterator[Build]:
    """Builds an image with the requirements given; it is removed after the test."""
    built: list[str] = []

    def call(requirements: str | bytes, *, config: dict[str, Any] | None = None) -> BuildResult:
        content = requirements.encode() if isinstance(requirements, str) else requirements
        (tmp_path / "requirements.txt").write_bytes(content)
        image_config = ImageConfig(**(config or {}))
        # Before the build, so that what a failed one leaves is removed too.
        built.append(find_plan(image_config, project_dir=tmp_path).reference)
        return build(image_config, project_dir=tmp_path)

    yield call
    for reference in set(built):
        # By its name, not its id: an image that another session's begins with only loses its name.
        with contextlib.suppress(ImageNotFound):
            engine.images.remove(reference, force=True)


def inside(engine: Any, image: str, *argv: str) -> str:
    """What a command in the image prints."""
    output: bytes = engine.containers.run(image, list(argv[1:]), entrypoint=argv[0], remove=True)
    return output.decode().strip()


def layers(engine: Any, reference: str) -> list[str]:
    found: list[str] = engine.images.get(reference).attrs["RootFS"]["Layers"]
    return found


def test_an_image_that_is_there_is_not_built_again(image: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    events: list[BuildEvent] = []
    again = build(ImageConfig(), project_dir=tmp_path, options=Options(progress=events.append))
    assert (again.reference, again.cached, events) == (image, True, [])


LAUNCHER = 'printf "#!/bin/sh\\n{}\\n" > /usr/local/bin/horovodrun && chmod +x /usr/local/bin/horovodrun'
NO_GLOO = "echo 'gloo_built = lambda: False' >> /opt/venv/lib/python3.11/site-packages/horovod/torch/__init__.py"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (NO_GLOO, "Gloo support has not been built"),
        (LAUNCHER.format("echo cannot initialise >&2; exit 1"), "cannot initialise"),
        pytest.param(LAUNCHER.format("exit 0"), "Horovod works with Gloo", marks=pytest.mark.nightly),
    ],
    ids=["no-gloo", "no-ranks", "none"],
)
def test_the_builds_own_check_fails_for_a_horovod_that_does_not_work(
    image: str, engine: Any, damage: str, message: str
) -> None:
    script = f"{damage} && PATH=/usr/local/bin:$PATH python /opt/hvdcloud/check_ranks.py gloo 2>&1; echo exit code $?"
    printed = inside(engine, image, "sh", "-c", script)
    assert message in printed
    assert printed.endswith("exit code 0" if message.startswith("Horovod works") else "exit code 1")


@pytest.mark.nightly
def test_without_horovod_ranks_of_torchrun_train_and_the_builds_own_check_sees_when_they_do_not(
    torchrun_image: str, engine: Any
) -> None:
    check = "python -B /opt/hvdcloud/check_ranks.py torchrun 2>&1; echo exit code $?"
    assert inside(engine, torchrun_image, "sh", "-c", check).splitlines() == [
        "torchrun works: two ranks trained a model of torch with Gloo",
        "exit code 0",
    ]
    assert inside(engine, torchrun_image, "sh", "-c", f"rm /opt/venv/bin/torchrun; {check}").endswith("exit code 1")
    no_gloo = (
        f"cd /opt/venv/lib/python3.11/site-packages/torch/distributed; echo 'raise OSError' >> __init__.py; {check}"
    )
    assert inside(engine, torchrun_image, "sh", "-c", no_gloo).endswith("exit code 1")


def test_an_image_without_horovod_has_neither_it_nor_open_mpi_and_is_smaller(
    torchrun_image: str, image: str, engine: Any
) -> None:
    tools = " ".join((*COMPILERS, "horovodrun", "mpirun", "orted"))
    found = inside(engine, torchrun_image, "sh", "-c", f"for tool in {tools} torchrun; do command -v $tool; done; true")
    assert found == "/opt/venv/bin/torchrun"
    horovod = "import importlib.util; print(importlib.util.find_spec('horovod'))"
    assert inside(engine, torchrun_image, "python", "-c", horovod) == "None"
    smaller, larger = (engine.images.get(reference).attrs["Size"] for reference in (torchrun_image, image))
    assert smaller < larger - 40e6


@pytest.mark.nightly
def test_a_requirement_that_is_compiled_gets_a_compiler_that_is_not_in_the_image(
    torchrun_image: str, engine: Any, tmp_path: Path
) -> None:
    native = tmp_path / "native"
    native.mkdir()
    (native / "native.c").write_text(NATIVE)
    (native / "setup.py").write_text(SETUP)
    (tmp_path / "requirements.txt").write_text("./native\n")
    built = build(ImageConfig(), project_dir=tmp_path, needs=Needs(launcher="torchrun"))
    try:
        script = "python -c 'import native; print(native.answer())'; command -v gcc g++ make; true"
        assert inside(engine, built.reference, "sh", "-c", script) == "42"
    finally:
        engine.images.remove(built.reference, force=True)


def test_neither_compiler_nor_pip_nor_caches_nor_host_keys_are_in_the_image(image: str, engine: Any) -> None:
    found = inside(engine, image, "sh", "-c", f"for tool in {' '.join(COMPILERS)}; do command -v $tool; done; true")
    assert found == ""
    unwanted = r"-name '*.whl' -o -name '*.a' -o -name 'ssh_host_*' -o -name ca-bundle.crt -o -path '*/.cache/*'"
    unwanted += r" -o -path '/var/lib/apt/lists/*' -o -path '/var/cache/apt/*' -o -path '/tmp/*' -o -path '/opt/tools'"
    assert inside(engine, image, "sh", "-c", f"find / -xdev \\( {unwanted} \\) -print") == ""


def test_changed_requirements_change_one_layer_and_no_other(engine: Any, image: str, small: Build) -> None:
    first, second = small("idna==3.10\n"), small("idna==3.11\n")
    ours, theirs = layers(engine, first.reference), layers(engine, second.reference)
    assert ours[:-1] == theirs[:-1] == layers(engine, image)[:-1]
    assert ours[-1] != theirs[-1]


def test_a_requirement_comes_before_what_the_image_has_and_its_scripts_are_on_the_path(
    engine: Any, small: Build, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("tabulate\n")
    built = small("-r more.txt\npackaging==25.0\n")
    assert inside(engine, built.reference, "python", "-c", "import packaging; print(packaging.__version__)") == "25.0"
    printed = inside(engine, built.reference, "sh", "-c", "command -v tabulate && echo a b | tabulate")
    assert printed.startswith("/opt/requirements/bin/tabulate\n")


def test_a_requirement_that_does_not_exist_fails_with_pips_own_lines(small: Build) -> None:
    with pytest.raises(ImageError) as raised:
        small("hvdcloud-no-such-package==9.9\n")
    assert raised.value.code == ExitCode.IMAGE
    assert "satisfies the requirement hvdcloud-no-such-package==9.9" in raised.value.message
    assert "ERROR: No matching distribution found for hvdcloud-no-such-package==9.9" in raised.value.details
    assert "image.requirements" in raised.value.hint


def test_local_wheels_and_the_ca_bundle_serve_the_build_and_stay_outside(
    engine: Any, image: str, small: Build, tmp_path: Path
) -> None:
    import certifi

    marker = f"marker-{secrets.token_hex(16)}"
    system = next((os.environ[name] for name in ("SSL_CERT_FILE", "PIP_CERT") if name in os.environ), certifi.where())
    (tmp_path / "ca.crt").write_text(f"# {marker}\n{Path(system).read_text()}")
    folder = tmp_path / "wheels"
    folder.mkdir()
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(place).glob("torch-*.whl"):
            shutil.copy(wheel, folder)
    wheel = make_wheel(folder, project="hvdcloud_e2e", content="answer = 42\n")
    built = small(
        # idna comes from the index, through the bundle.
        "hvdcloud_e2e\nidna==3.10\n",
        config={"find_links": "wheels", "ca_bundle": "ca.crt"},
    )
    assert inside(engine, built.reference, "python", "-c", "import hvdcloud_e2e as e; print(e.answer)") == "42"
    # With no layer of its own but the last, it has nothing that is deleted again.
    assert layers(engine, built.reference)[:-1] == layers(engine, image)[:-1]
    # The first is what the search itself has to find.
    assert found_in(engine, built.reference, "answer = 42", marker) == {"answer = 42"}
    history = str(engine.images.get(built.reference).history())
    assert wheel.name not in history
    assert marker not in history
    assert "/ca.crt" not in history


def found_in(engine: Any, reference: str, *needles: str) -> set[str]:
    """Those of these words that any file of the image has."""
    words = " ".join(f"-e '{needle}'" for needle in needles)
    search = f"LC_ALL=C grep -raohF --exclude-dir=proc --exclude-dir=sys {words} / | sort -u"
    return set(inside(engine, reference, "sh", "-c", search).splitlines())
