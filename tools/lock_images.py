"""Renews the digests in dockerfiles/base-images.txt: `make lock-images`.

The registries are asked through the Docker engine, with its proxies and credentials. If one of them does not answer, or
has no such tag, the file stays as it is.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdcloud.errors import HvdcloudError, ImageError
from hvdcloud.image.plan.base_images import parse
from hvdcloud.image.publish.registry import digest_at_registry, host_of


def renew(file: Path, *, today: datetime.date) -> list[str]:
    """Writes the digests that the registries have now into the file; returns the images whose digest is another one.

    Raises:
        ImageError, CredentialsError, NodeError: a registry or the engine does not answer, or a tag does not exist.
    """
    text = file.read_text(encoding="utf-8")
    known = parse(text)
    digests = {name: _asked(name) for name in known}
    file.write_text(renewed(text, digests, today=today), encoding="utf-8")
    return [name for name, digest in digests.items() if digest != known[name]]


def renewed(text: str, digests: Mapping[str, str], *, today: datetime.date) -> str:
    """The file with these digests; where one is another, the comment above it says which registry had it, and when."""
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        # One image is at the end of a paragraph, below its comment.
        for name, old in parse(paragraph).items():
            if digests[name] != old:
                paragraph = f"# {host_of(name)}, {today}\n{name}@{digests[name]}"
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs) + "\n"


def _asked(name: str) -> str:
    digest = digest_at_registry(name)
    if digest is None:
        raise ImageError(f"{host_of(name)} has no {name}", hint="correct dockerfiles/base-images.txt")
    return digest


def main() -> int:
    """Renews the file that the command line names; 1: a registry did not answer."""
    parser = argparse.ArgumentParser(description="Renew the digests of the images that hvdcloud's own start from.")
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    try:
        changed = renew(file, today=datetime.datetime.now(tz=datetime.timezone.utc).date())
    except HvdcloudError as error:
        sys.stderr.write(f"{file} is as it was: {error.message}\n→ {error.hint}\n")
        return 1
    sys.stderr.write(f"{file}: {', '.join(changed) or 'nothing'} has another digest\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
