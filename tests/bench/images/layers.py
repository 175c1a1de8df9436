"""What an image consists of, in bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.measure import BenchError, output

# Runs in the image, under its own Python: the bytes below each folder of site-packages, by the owner of its libraries.
_PACKAGES = """
import json, os, sys
found = {"cuda": 0, "all": 0}
for place in sys.path:
    if not place.endswith("site-packages") or not os.path.isdir(place):
        continue
    for folder, _, names in os.walk(place):
        part = os.path.relpath(folder, place).split(os.sep)[0]
        for name in names:
            size = os.lstat(os.path.join(folder, name)).st_size
            found["all"] += size
            found["cuda"] += size * (part.startswith("nvidia"))
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one image, uncompressed, in bytes.

    Attributes:
        layers: what is in them, and how much.
        packages: files below the site-packages folders of its Python.
        cuda: those of them that are NVIDIA's: CUDA's runtime, cuDNN, NCCL and so on.
    """

    layers: Mapping[str, int]
    packages: int
    cuda: int

    @property
    def total(self) -> int:
        return sum(self.layers.values())


def sizes(image: str) -> Sizes:
    """Asks the engine, and the image's own Python.

    Raises:
        BenchError: the image is not there, or its Python does not start.
    """
    history = output("docker", "history", "--no-trunc", "--human=false", "--format", "{{json .}}", image)
    packages = output("docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", _PACKAGES)
    if not history or not packages:
        raise BenchError(f"there is no image {image}, or it has no Python")
    found = json.loads(packages)
    return Sizes(layers=_layers(history.splitlines()), packages=found["all"], cuda=found["cuda"])


def _layers(history: Sequence[str]) -> dict[str, int]:
    """The layers by what is in them, the lowest first. Horovod's copy into /opt/venv is the second one."""
    found: dict[str, int] = {}
    for line in reversed(history):
        layer = json.loads(line)
        made_by, size = layer["CreatedBy"], int(layer["Size"])
        if not found:
            what = "Debian"
        elif "apt-get" in made_by:
            what = "Open MPI, sshd, Python"
        elif "/opt/requirements" in made_by and "PATH=" not in made_by:
            what = "the project's requirements"
        elif "COPY" in made_by and made_by.removesuffix(" # buildkit").rstrip().endswith("/opt/venv"):
            what = "Horovod" if "the framework" in found else "the framework"
        else:
            what = "the node program and its Python"
        found[what] = found.get(what, 0) + size
    return found
