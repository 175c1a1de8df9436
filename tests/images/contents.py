"""What an image holds, asked in containers of it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Of all libraries that a process has once Horovod has started, those of NVIDIA: name → where each copy of it is.
_LIBRARIES = """
import importlib, json, os, sys
importlib.import_module(sys.argv[1]).init()
found = {}
for path in sorted({line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if ".so" in line}):
    name = os.path.basename(path).partition(".so")[0]
    if name.startswith(("libcu", "libnccl", "libnv")):
        found.setdefault(name, []).append(path)
print(json.dumps(found))
"""


def inside(engine: Any, image: str, *argv: str, **options: Any) -> str:
    """What a command in a new container prints, standard error included."""
    output: bytes = engine.containers.run(
        image, list(argv[1:]), entrypoint=argv[0], remove=True, stderr=True, **options
    )
    return output.decode().strip()


def cuda_libraries(engine: Any, image: str, module: str, **options: Any) -> dict[str, Sequence[str]]:
    """NVIDIA's libraries in a process in which Horovod has started: name → where each copy of it is.

    Args:
        module: `horovod.torch` or `horovod.tensorflow`.
    """
    said = inside(engine, image, "python", "-c", _LIBRARIES, module, **options)
    found: dict[str, Sequence[str]] = json.loads(said.splitlines()[-1])
    return found


def files_named(engine: Any, image: str, *patterns: str) -> list[str]:
    """Files by their names; links are not counted."""
    either = [word for pattern in patterns for word in ("-o", "-name", pattern)][1:]
    return inside(engine, image, "find", "/", "-xdev", "-type", "f", "(", *either, ")").split()


def file_from(engine: Any, image: str, path: str, target: Path) -> Path:
    """Copies a file out of an image into a folder."""
    container = engine.containers.create(image)
    try:
        chunks, _ = container.get_archive(path)
        content = b"".join(chunks)
    finally:
        container.remove()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile(Path(path).name)
        assert member is not None
        copy = target / Path(path).name
        copy.write_bytes(member.read())
    return copy


def image_bytes(engine: Any, image: str) -> int:
    """All layers together."""
    return int(engine.images.get(image).attrs["Size"])


def package_bytes(engine: Any, image: str) -> int:
    """What the image's Python packages take, pip's own view: files, without folders."""
    total = """find /opt/venv -type f -printf '%s\\n' | awk '{ sum += $1 } END { printf "%.0f\\n", sum }'"""
    return int(inside(engine, image, "sh", "-c", total))
