"""Keras 3 beside Horovod's TensorFlow part is refused; whatever else a Python has is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvdcloud.node.run import keras_check

COMMAND = ("python train.py",)


class Image:
    """A Python with packages, of which only names of files exist."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folders = [self.base / "requirements", self.base / "venv"]
        self.add("horovod/tensorflow/mpi_lib.cpython-311-x86_64-linux-gnu.so")
        self.python("python", self.folders)

    def python(self, name: str, folders: list[Path]) -> None:
        """A program that answers as a Python with these folders on its sys.path."""
        program = self.base / "bin" / name
        program.parent.mkdir(exist_ok=True)
        lines = "\n".join(f"echo {folder}" for folder in folders)
        program.write_text(f"#!/bin/sh\necho\necho /nowhere/python311.zip\n{lines}\n")
        program.chmod(0o755)

    def add(self, *entries: str, to: str = "venv") -> Image:
        for entry in entries:
            path = self.base / to / entry
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return self

    def problem(self, command: tuple[str, ...] = COMMAND, **environment: str) -> str | None:
        environment = {"PATH": f"{self.base / 'bin'}:/usr/bin:/bin", **environment}
        return keras_check.problem(keras_check.ask(command, environment))


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_keras_3_is_refused_with_what_to_do(image: Image) -> None:
    found = image.add("keras-3.11.3.dist-info/METADATA", "tensorflow-2.21.0.dist-info/METADATA").problem()
    assert found
    assert f"Keras 3.11.3 (in {image.base / 'venv'})" in found
    for words in ("not be averaged", "image.version", "2.15.1", "tf-keras", "TF_USE_LEGACY_KERAS"):
        assert words in found


def test_keras_3_from_the_requirements_is_refused_although_the_image_has_keras_2(image: Image) -> None:
    image.add("keras-2.15.0.dist-info/METADATA")
    found = image.add("keras-3.0.5.dist-info/METADATA", to="requirements").problem()
    assert found
    assert f"Keras 3.0.5 (in {image.base / 'requirements'})" in found


def test_keras_2_before_keras_3_on_the_path_is_what_is_imported(image: Image) -> None:
    image.add("keras-3.0.5.dist-info/METADATA")
    assert image.add("keras-2.15.0.dist-info/METADATA", to="requirements").problem() is None


@pytest.mark.parametrize(
    "others",
    [
        ["keras-2.15.0.dist-info/METADATA"],
        ["keras-2.15.0-py3.11.egg-info/PKG-INFO"],
        [
            "tf_keras-2.21.0.dist-info/METADATA",
            "keras_hub-3.1.dist-info/METADATA",
            "keras-tuner-3.0.dist-info/METADATA",
        ],
    ],
)
def test_other_packages_are_not_refused(image: Image, others: list[str]) -> None:
    assert image.add(*others).problem() is None


def test_keras_3_as_an_egg_is_refused(image: Image) -> None:
    assert image.add("keras-3.1.0-py3.11.egg-info/PKG-INFO").problem()


@pytest.mark.parametrize(
    ("value", "refused"), [("1", False), ("true", False), ("True", False), ("0", True), ("", True)]
)
def test_legacy_keras_is_read_as_tensorflow_reads_it(image: Image, value: str, *, refused: bool) -> None:
    image.add("keras-3.11.3.dist-info/METADATA", "tf_keras-2.21.0.dist-info/METADATA")
    assert bool(image.problem(TF_USE_LEGACY_KERAS=value)) is refused


def test_horovod_without_its_tensorflow_part_may_have_any_keras(image: Image) -> None:
    next((image.base / "venv/horovod/tensorflow").glob("*.so")).unlink()
    image.add("keras-3.11.3.dist-info/METADATA", "horovod/tensorflow/__init__.py")
    assert image.problem() is None


@pytest.mark.parametrize(
    "command", [("python3.9 train.py",), ("python3.9", "train.py"), ("{bin}/python3.9 -u train.py",)]
)
def test_the_python_of_the_command_is_looked_at(image: Image, command: tuple[str, ...]) -> None:
    image.add("keras-3.11.3.dist-info/METADATA")
    image.python("python3.9", [])
    assert image.problem(tuple(word.format(bin=image.base / "bin") for word in command)) is None
    assert image.problem(("bash train.sh",)) is not None


@pytest.mark.parametrize("command", [("'unfinished",), ("",), ("python3.99 train.py",)])
def test_a_command_that_cannot_run_is_left_to_the_shell(image: Image, command: tuple[str, ...]) -> None:
    assert image.problem(command) is None


def test_a_python_that_fails_is_left_to_the_command(image: Image) -> None:
    image.add("keras-3.11.3.dist-info/METADATA")
    (image.base / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    assert image.problem() is None


def test_the_path_of_a_real_python_is_read(tmp_path: Path) -> None:
    for entry in ("horovod/tensorflow/mpi_lib.abi3.so", "keras-3.2.1.dist-info/METADATA"):
        path = tmp_path / entry
        path.parent.mkdir(parents=True)
        path.touch()
    found = keras_check.problem(keras_check.ask([sys.executable, "train.py"], {"PYTHONPATH": str(tmp_path)}))
    assert found
    assert "Keras 3.2.1" in found
