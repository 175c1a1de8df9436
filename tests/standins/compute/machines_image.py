"""The image that machines start from, built by the engine when its content is not there yet."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "machine"
REPOSITORY = "hvdcloud-emulator/machine"


def machine_image(client: Any) -> str:
    """Reference of the image; its tag stands for the content of machine/.

    Args:
        client: docker-py's.

    Raises:
        docker.errors.BuildError: a step failed.
    """
    from docker.errors import ImageNotFound

    context = _context()
    reference = f"{REPOSITORY}:{hashlib.sha256(context).hexdigest()[:12]}"
    try:
        client.images.get(reference)
    except ImageNotFound:
        client.images.build(fileobj=io.BytesIO(context), custom_context=True, tag=reference, rm=True)
    return reference


def _context() -> bytes:
    """The folder as a tar file, the same bytes for the same content."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(FOLDER.rglob("*")):
            if path.is_file() and path.suffix != ".md":
                member = tarfile.TarInfo(path.relative_to(FOLDER).as_posix())
                member.size = path.stat().st_size
                member.mode = 0o755
                with path.open("rb") as content:
                    archive.addfile(member, content)
    return data.getvalue()
