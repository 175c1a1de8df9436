"""Which versions go together: one row for each framework and device that an image can be built for.

Horovod's last release is 0.28.1 (June 2023). Every row was built and run; `evidence` says how.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvdcloud.errors import UsageError

PYTHON_VERSION = "3.11"  # Debian 12's


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One image that can be built.

    Attributes:
        framework: as in `image.framework`.
        device: as in `image.device`.
        framework_version: what is installed, with its local version ("+cpu"), so that nothing else can be.
        framework_index: where wheels of that local version are, unless the user has them.
        horovod: version of the source package that is compiled.
        horovod_sha256: of that source package on PyPI.
        dockerfile: file in dockerfiles/.
        lock: file in dockerfiles/locks/ with the framework's dependencies, each at one version.
        evidence: how we know that the row works.
    """

    framework: str
    device: str
    framework_version: str
    framework_index: str
    horovod: str
    horovod_sha256: str
    dockerfile: str
    lock: str
    evidence: str

    @property
    def label(self) -> str:
        """For image tags: `torch-2.13.0-cpu`."""
        return f"{self.framework}-{self.framework_version.partition('+')[0]}-{self.device}"


ROWS = (
    Row(
        framework="torch",
        device="cpu",
        framework_version="2.13.0+cpu",
        framework_index="https://download.pytorch.org/whl/cpu",
        horovod="0.28.1",
        horovod_sha256="92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0",
        dockerfile="torch.Dockerfile",
        lock="torch-cpu.txt",
        evidence="g++ 12.2, Open MPI 4.1.4, numpy 2.4.6, the C++17 patch; tests/e2e trains on it with Gloo and MPI",
    ),
)


def find(framework: str, device: str) -> Row:
    """The row for `image.framework` and `image.device`.

    Raises:
        UsageError: there is none.
    """
    for row in ROWS:
        if (row.framework, row.device) == (framework, device):
            return row
    known = ", ".join(f"{row.framework} on {row.device}" for row in ROWS)
    raise UsageError(
        f"there is no image for {framework} on {device}",
        hint=f"set image.framework and image.device to one of: {known}",
    )
