"""Which versions go together: one row for each image that can be built.

Horovod's last release is 0.28.1 (June 2023). `evidence` says how we know that a row works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdcloud.errors import UsageError

PYTHON_VERSION = "3.11"  # Debian 12's


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One image that can be built. Of the rows with the same framework and device the first is the default.

    Attributes:
        framework: as in `image.framework`.
        version: as in `image.version`.
        device: as in `image.device`.
        package: what pip installs: `torch==2.13.0+cpu`. A local version ("+cpu") can be nothing else than this.
        index: where wheels of that local version are, unless the user has them; "": PyPI.
        lock: file in dockerfiles/locks/ with the framework's dependencies, each at one version.
        patches: of Horovod: names in dockerfiles/patches/.
        cuda: version of the CUDA libraries that the framework brings; "" without.
        capabilities: compute capabilities of GPUs that the framework's wheels and Horovod hold code for, ascending.
        nccl: version of the NCCL that framework and Horovod share; "" without.
        donor: image with the CUDA toolkit, in /usr/local/cuda, that Horovod is compiled with; "" without.
        keras: the Keras that Horovod's callbacks and optimizer work with; "" without.
        environment: variables that every process in the image needs.
        horovod: version of the source package that is compiled.
        horovod_sha256: of that source package on PyPI.
        evidence: how we know that the row works.
    """

    framework: str
    version: str
    device: str
    package: str
    index: str = ""
    lock: str
    patches: tuple[str, ...] = ()
    cuda: str = ""
    capabilities: tuple[str, ...] = ()
    nccl: str = ""
    donor: str = ""
    keras: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    horovod: str = "0.28.1"
    horovod_sha256: str = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
    evidence: str

    @property
    def label(self) -> str:
        """For image tags: `torch-2.13.0-cpu`."""
        return f"{self.framework}-{self.version}-{self.device}"

    @property
    def project(self) -> str:
        """The framework's name at PyPI: `tensorflow-cpu`."""
        return self.package.partition("==")[0]


ROWS = (
    Row(
        framework="torch",
        version="2.13.0",
        device="cpu",
        package="torch==2.13.0+cpu",
        index="https://download.pytorch.org/whl/cpu",
        lock="torch-cpu.txt",
        patches=("cxx17",),
        evidence="g++ 12.2, Open MPI 4.1.4, numpy 2.4.6, the C++17 patch; tests/e2e trains on it with Gloo and MPI",
    ),
)


def find(framework: str, device: str, version: str | None = None) -> Row:
    """The row for `image.framework`, `image.device` and `image.version`.

    Raises:
        UsageError: there is none.
    """
    rows = [row for row in ROWS if (row.framework, row.device) == (framework, device)]
    for row in rows:
        if version in (None, row.version):
            return row
    if rows:
        raise UsageError(
            f"there is no image for {framework} {version} on {device}",
            hint=f"set image.version to one of: {_listed([row.version for row in rows])}; or leave it out",
        )
    known = _listed([f"{row.framework} on {row.device}" for row in ROWS])
    raise UsageError(
        f"there is no image for {framework} on {device}",
        hint=f"set image.framework and image.device to one of: {known}",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
