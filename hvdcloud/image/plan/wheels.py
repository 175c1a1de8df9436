"""The local wheels: which of those in the user's folders pip can install in an image. Nothing here reads one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from hvdcloud.errors import UsageError
from hvdcloud.image.plan.sources import Sources
from hvdcloud.image.plan.versions import GLIBC_VERSION, PYTHON_VERSION, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One of the user's wheels; `project` is what it installs, as package indexes spell it."""

    path: Path
    project: str
    version: Version


def local_wheels(sources: Sources, *, python: str | None = PYTHON_VERSION) -> list[Wheel]:
    """The wheels that pip in the image can install, in the order of their names.

    Args:
        python: the image's. None: it is known in the image only; wheels for any Python and any glibc may fit.
    """
    fits = tags_of(sources.machine, python).__contains__ if python else _fits_glibc(sources.machine)
    # Of two wheels with one name the first folder's counts, as with pip.
    found = {wheel.name: wheel for folder in reversed(sources.find_links) for wheel in _wheels_in(folder)}
    wheels = []
    for name in sorted(found):
        try:
            project, version, _, tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue  # pip does not look at it either.
        if any(map(fits, tags)):
            wheels.append(Wheel(path=found[name], project=project, version=version))
    return wheels


def _wheels_in(folder: Path) -> Iterator[Path]:
    """The files that are called wheels. Raises UsageError: a link leads out of the folder."""
    for path in folder.glob("*.whl"):
        if path.is_symlink() and folder.resolve() not in path.resolve().parents:
            message = f"{path} is a link to {path.resolve()}, outside of the folder, and would be sent to the build"
            raise UsageError(message, hint="remove the link, or put the wheel itself in its place")
        if path.is_file():
            yield path


@cache
def tags_of(machine: str, python: str) -> frozenset[Tag]:
    """Of the wheels that this version of CPython can install in our own images."""
    version = [int(part) for part in python.split(".")]
    glibc, newest = (int(part) for part in GLIBC_VERSION.split("."))
    interpreter = f"cp{python.replace('.', '')}"
    systems = [f"manylinux_{glibc}_{minor}" for minor in range(newest, 4, -1)]
    systems += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    platforms = [f"{system}_{machine}" for system in systems]
    # Every argument is given: the defaults are those of the Python that runs hvdcloud.
    return frozenset(
        (*cpython_tags(version, [interpreter], platforms), *compatible_tags(version, interpreter, platforms))
    )


def _fits_glibc(machine: str) -> Callable[[Tag], bool]:
    """Whether a tag is for Linux with glibc, or for any system."""
    platform = re.compile(rf"any|(?:linux|manylinux\w+)_{machine}")
    return lambda tag: platform.fullmatch(tag.platform) is not None


def is_framework(wheel: Wheel, row: Row) -> bool:
    """Whether it is the wheel of the image's own framework."""
    return wheel.project == row.project and wheel.version == Version(row.package.partition("==")[2])
