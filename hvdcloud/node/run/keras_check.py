"""Whether the user's Python would train with Keras 3, which Horovod 0.28.1 does not know.

There `hvd.DistributedOptimizer` does not average gradients and does not say so: the job succeeds, with different
weights on every rank. Looked up in the names of installed packages, since importing TensorFlow takes seconds.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PYTHON_SECONDS = 10.0
_SYS_PATH = "import sys; print(*sys.path, sep='\\n')"
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# https://github.com/tensorflow/tensorflow/blob/v2.16.1/tensorflow/python/util/lazy_loader.py
_LEGACY = "TF_USE_LEGACY_KERAS"
_TRUE = ("true", "True", "1")


def ask(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str] | None:
    """Ask the Python that a command starts where it imports from, for `problem`: it answers while the caller does
    something else. None: that does not matter, or there is no such Python, as the command itself will say.
    """
    if environment.get(_LEGACY) in _TRUE:
        return None
    # `env` looks it up in the rank's PATH, not in this process's.
    asked = ["/usr/bin/env", _python_of(command), "-c", _SYS_PATH]
    try:
        return subprocess.Popen(
            asked,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None


def problem(asked: subprocess.Popen[str] | None) -> str | None:
    """Why a rank must not start the command that was asked for, and what to do about it; None where nothing speaks
    against it. A program of another framework, or one that reduces gradients itself, may set TF_USE_LEGACY_KERAS as
    well: only tf.keras reads it."""
    folders = _import_folders(asked) if asked is not None else []
    if not any(any(folder.glob("horovod/tensorflow/mpi_lib*.so")) for folder in folders):
        return None
    version, folder = _installed("keras", folders)
    if int(version.partition(".")[0]) < 3:
        return None
    return (
        f"Keras {version} (in {folder}) does not work with Horovod: gradients would not be averaged, "
        "without any error, and each rank would end with weights of its own. Set image.version to 2.15.1 and leave "
        f'keras out of requirements.txt; or have tf-keras in the image and {_LEGACY}: "1" in run.env'
    )


def _python_of(command: Sequence[str]) -> str:
    """The Python that a command starts; where it starts something else, the one that `python` is."""
    try:
        first = (shlex.split(command[0]) if len(command) == 1 else list(command))[0]
    except (ValueError, IndexError):
        return "python"
    return first if _PYTHON.fullmatch(Path(first).name) else "python"


def _import_folders(asked: subprocess.Popen[str]) -> list[Path]:
    """That Python's sys.path; empty where it does not say, as the command itself will."""
    try:
        answer, _ = asked.communicate(timeout=PYTHON_SECONDS)
    except subprocess.TimeoutExpired:
        asked.kill()
        asked.communicate()
        return []
    if asked.returncode:
        return []
    return [folder for folder in map(Path, filter(None, answer.splitlines())) if folder.is_dir()]


def _installed(name: str, folders: Iterable[Path]) -> tuple[str, Path]:
    """Version and folder of the package that an import finds, the first one on sys.path; version 0: there is none.
    Versions are in the names of metadata folders
    (https://packaging.python.org/en/latest/specifications/recording-installed-packages/)."""
    for folder in folders:
        for entry in folder.glob(f"{name}-*-info"):
            if found := re.fullmatch(rf"{name}-(\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info", entry.name):
                return found[1], folder
    return "0", Path()
