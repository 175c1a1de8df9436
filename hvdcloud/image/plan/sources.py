"""What the user's machine contributes to a build without being part of the image: wheels, CA bundle, proxies."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from hvdcloud.config.trust import host_path
from hvdcloud.errors import UsageError
from hvdcloud.image.plan.versions import GLIBC_VERSION, PYTHON_VERSION, Row

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# A folder that pip in the build does not find: it looks at the local wheels alone, and tries no index again and again.
_NO_INDEX = "file:///opt/no-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a build takes from this machine.

    Attributes:
        find_links: folders with local wheels.
        ca_bundle: CA certificates that the build's downloads are checked with.
        machine: the engine's, as in wheel names: x86_64 or aarch64.
    """

    find_links: tuple[Path, ...] = ()
    ca_bundle: Path | None = None
    machine: str = "x86_64"


def find_sources(
    *, find_links: str | None, ca_bundle: str | None, project_dir: Path, machine: str | None = None
) -> Sources:
    """What hvdcloud.yaml names, else what pip's and OpenSSL's environment variables do.

    Args:
        find_links: `image.find_links`, relative to `project_dir`. None: the folders in PIP_FIND_LINKS that exist.
        ca_bundle: `image.ca_bundle`, relative to it too. None: the first existing file of SSL_CERT_FILE, PIP_CERT and
            REQUESTS_CA_BUNDLE.
        machine: the processor that the image is for, as in wheel names. None: this machine's.

    Raises:
        UsageError: what hvdcloud.yaml names is missing, or is something else.
    """
    # The engine's machine is this one, or a virtual machine on it.
    here = platform.machine().lower()
    return Sources(
        find_links=_find_links(find_links, project_dir),
        ca_bundle=_ca_bundle(ca_bundle, project_dir),
        machine=machine or {"amd64": "x86_64", "arm64": "aarch64"}.get(here, here),
    )


def download_arguments(environment: Mapping[str, str]) -> dict[str, str]:
    """Build arguments that only decide how something is downloaded; none of them is an argument of the last stage."""
    proxies = [variable for name in _PROXIES for variable in (name, name.upper())]
    found = {name: environment[name] for name in proxies if environment.get(name)}
    if no_index(environment):
        return {**found, "PIP_INDEX_URL": _NO_INDEX}
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        # The engine cannot use a folder of this machine as an index.
        urls = [url for url in environment.get(name, "").split() if url.startswith(("http://", "https://"))]
        if urls:
            found[name] = " ".join(urls)
    return found


def no_index(environment: Mapping[str, str]) -> bool:
    """Whether pip is to look at the local wheels alone."""
    return environment.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on")


def _find_links(configured: str | None, project_dir: Path) -> tuple[Path, ...]:
    if configured is not None:
        folder = host_path(configured, project_dir)
        if not folder.is_dir():
            raise UsageError(
                f"{folder} is not a folder, but image.find_links names it",
                hint="image.find_links is a folder with .whl files; correct it in hvdcloud.yaml or take it out",
            )
        return (folder,)
    places = (place.removeprefix("file://") for place in os.environ.get("PIP_FIND_LINKS", "").split())
    return tuple(Path(place) for place in places if "://" not in place and Path(place).is_dir())


def _ca_bundle(configured: str | None, project_dir: Path) -> Path | None:
    if configured is None:
        named = (Path(os.environ[variable]) for variable in _CA_VARIABLES if os.environ.get(variable))
        return next((path for path in named if path.is_file()), None)
    path = host_path(configured, project_dir)
    if not path.is_file():
        message = f"{path} does not exist, but image.ca_bundle names it"
        raise UsageError(message, hint="correct image.ca_bundle in hvdcloud.yaml")
    content = path.read_bytes()
    if b"PRIVATE KEY-----" in content:
        message = f"{path} holds a private key, and image.ca_bundle would send it to the image's build"
        raise UsageError(message, hint="name a file with certificates only")
    if b"-----BEGIN CERTIFICATE-----" not in content:
        message = f"{path} holds no certificate in PEM form, but image.ca_bundle names it"
        raise UsageError(message, hint="name a file with -----BEGIN CERTIFICATE----- in it")
    return path


# --- local wheels: which of them pip can install in an image; none is read --------------------------------------------


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
