"""The images that hvdcloud's own start from, each by the digest of its content: dockerfiles/base-images.txt.

A tag may be moved, by its owner or by an intruder at the registry. An engine that reaches no registry has no image of
that digest: where it has one under the tag that was made on the machine itself, and is from no registry, it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvdcloud import __version__
from hvdcloud.image.engine_reports import inspected, other_architecture
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.publish import registry

FILE = "base-images.txt"
DEBIAN = "debian:bookworm-slim"
MADE_HERE = "hvdcloud-base-image"
"""The label with which tools/base-image.sh marks what it makes where no registry can be reached."""
# https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
NAME_LABEL = "org.opencontainers.image.base.name"
DIGEST_LABEL = "org.opencontainers.image.base.digest"


def parse(text: str) -> dict[str, str]:
    """NAME:TAG → digest; "" for a tag alone."""
    lines = (line.strip() for line in text.splitlines())
    images = (line.partition("@") for line in lines if line and not line.startswith("#"))
    return {name: digest for name, _, digest in images}


def pinned(name: str) -> str:
    """NAME:TAG@DIGEST of an image that the file has with a digest; any other name as it is."""
    digest = parse((dockerfiles() / FILE).read_text(encoding="utf-8")).get(name)
    return f"{name}@{digest}" if digest else name


def here(api: Any, reference: str, *, architecture: str = "") -> str:
    """What to start from on this engine: the reference, or its tag where the engine has that from no registry.

    Args:
        reference: NAME:TAG@DIGEST; one without a digest is returned as it is.
        architecture: that it has to be for: `amd64`; "": any.
    """
    name, at, _ = reference.partition("@")
    if not at or inspected(api, reference):
        return reference
    found = inspected(api, name)
    if found is None or other_architecture(api, name, architecture):
        return reference
    # An engine with containerd's image store has a digest of everything, also of what no registry knows.
    made_here = not found.get("RepoDigests") or (found.get("Config", {}).get("Labels") or {}).get(MADE_HERE)
    return name if made_here else reference


def labels(reference: str, digest: str = "") -> dict[str, str]:
    """Labels that say what an image was built on.

    Args:
        reference: NAME:TAG, with or without its digest.
        digest: where the reference has none; "": not known. That is said too: an image inherits its base's labels.
    """
    name, _, known = reference.partition("@")
    host = registry.host_of(name)
    if host == "docker.io":
        path = name.removeprefix("docker.io/").removeprefix("index.docker.io/")
        name = f"docker.io/{path}" if "/" in path else f"docker.io/library/{path}"
    return {NAME_LABEL: name, DIGEST_LABEL: known or digest}


def version_labels(versions: Mapping[str, str | None]) -> dict[str, str]:
    """Labels for the versions in an image (`torch`, `horovod`, …; those without a value left out), and hvdcloud's."""
    found = {"builder": f"hvdcloud {__version__}", **versions}
    # Containers inherit labels: none of those that mark a cluster's objects (hvdcloud-cluster, …) begins like this.
    return {f"hvdcloud-image-{name}": value for name, value in found.items() if value}
