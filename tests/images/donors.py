"""Images with a CUDA toolkit, to compile Horovod with where NVIDIA's own can't be pulled."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hvdcloud.image.plan import versions
from hvdcloud.image.plan.versions import Row

REPOSITORY = "hvdcloud-test/cuda-donor"
DEBIAN_CUDA = "11.8"
_DEBIAN = Path(__file__).with_name("debian-toolkit.Dockerfile")
# All that nvcc needs to compile and link; a whole toolkit has gigabytes of libraries beside it.
_FOLDERS = ("bin", "include", "nvvm")
_LIBRARIES = ("libcudart*", "libcudadevrt.a", "libnvvm.so*")


class Donor(NamedTuple):
    """An image in the engine, and the CUDA that its nvcc is of: "11.8"."""

    reference: str
    cuda: str


def of_nvidia(engine: Any, reference: str) -> Donor | None:
    """NVIDIA's own image; None if it is neither in the engine nor can be pulled."""
    from docker.errors import APIError, ImageNotFound

    try:
        engine.images.get(reference)
    except ImageNotFound:
        try:
            engine.images.pull(reference)
        except APIError:
            return None
    found = re.search(r":(\d+\.\d+)", reference)
    return Donor(reference, found[1] if found else "")


def of_this_machine(engine: Any) -> Donor | None:
    """The toolkit in CUDA_HOME or /usr/local/cuda; None without one."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")).resolve()
    nvcc = home / "bin" / "nvcc"
    if not nvcc.is_file():
        return None
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"release (\d+\.\d+),", said)
    assert version, said
    donor = Donor(f"{REPOSITORY}:machine-{version[1]}", version[1])
    if not engine.images.list(donor.reference):
        repository, _, tag = donor.reference.partition(":")
        engine.api.import_image_from_data(_archive(home), repository=repository, tag=tag)
    return donor


def of_debian(engine: Any) -> Donor:
    """Debian's nvcc; 0.9 GB are downloaded the first time, and 120 MB kept."""
    donor = Donor(f"{REPOSITORY}:debian-{DEBIAN_CUDA}", DEBIAN_CUDA)
    if not engine.images.list(donor.reference):
        stage = _build(engine, target="packages")
        _build(engine, tag=donor.reference)
        # The classic builder leaves it behind, with gigabytes.
        engine.images.remove(stage, force=True)
    return donor


def donor_for(engine: Any, *, wanted: str, cuda: str) -> Donor:
    """The best donor that can be had for a framework of this CUDA; Debian's, at worst.

    Args:
        wanted: the donor that the version matrix names.
        cuda: as there: "12.6".
    """
    if found := of_nvidia(engine, wanted):
        return found
    here = of_this_machine(engine)
    if here is not None and here.cuda.partition(".")[0] == cuda.partition(".")[0]:
        return here
    return of_debian(engine)


@contextmanager
def compiled_with(row: Row, donor: str) -> Iterator[None]:
    """In this block the version matrix has another donor for a row, and no toolkit from PyPI."""
    rows = versions.ROWS
    versions.ROWS = tuple(replace(each, donor=donor, toolkit="") if each is row else each for each in rows)  # type: ignore[assignment]
    try:
        yield
    finally:
        versions.ROWS = rows


def _build(engine: Any, **options: str) -> str:
    with _DEBIAN.open("rb") as file:
        image, _ = engine.images.build(fileobj=file, rm=True, forcerm=True, **options)
    return str(image.id)


def _archive(home: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in _FOLDERS:
            archive.add(home / name, f"usr/local/cuda/{name}")
        libraries = home / "lib64"
        for pattern in _LIBRARIES:
            for file in sorted(libraries.glob(pattern)):
                archive.add(file, f"usr/local/cuda/lib64/{file.name}")
    return content.getvalue()
