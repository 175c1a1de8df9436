"""Image layers that this machine's engine has, on the disks of machines.

Unpacking an image of a gigabyte takes a core 15 s, for every machine again. Here the disk of a machine has its image's
layers from the start, as if it were made from a disk image with them on it: `docker pull` asks the registry as ever,
and finds that these layers exist. They are not copied, but mounted, read-only; machine/init makes them layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LENT = "/opt/lent"
"""Where machine/init looks for them: layers/CHAIN, layerdb/CHAIN, distribution and images, as Docker keeps them."""


def layer_binds(client: Any, image: str) -> list[str]:
    """What a machine's container mounts to have an image's layers, as `docker run --volume` has it.

    Args:
        client: docker-py's.
        image: a reference. Nothing is mounted of one that this engine does not have, or keeps in another way.
    """
    from docker.errors import ImageNotFound

    try:
        found = client.images.get(image).attrs
    except ImageNotFound:
        return []
    if (found.get("GraphDriver") or {}).get("Name") != "overlay2":
        return []
    driver = found["GraphDriver"]["Data"]
    lower = reversed(driver["LowerDir"].split(":")) if "LowerDir" in driver else ()
    folders = [Path(each).parent for each in (*lower, driver["UpperDir"])]
    metadata = folders[0].parent.parent / "image/overlay2"
    layers = zip(chain_of(found["RootFS"]["Layers"]), folders, strict=True)
    return [
        f"{metadata}/layerdb/sha256:{LENT}/layerdb:ro",
        f"{metadata}/distribution:{LENT}/distribution:ro",
        f"{metadata}/imagedb/content/sha256:{LENT}/images:ro",
        *(f"{folder}:{LENT}/layers/{chain}:ro" for chain, folder in layers),
    ]


def lent_images(client: Any, images: Sequence[str]) -> str:
    """LENT_IMAGES of machine/init: these images, whose layers are mounted, are on the machine's disk as well."""
    return " ".join(f"{image}={client.images.get(image).id}" for image in images)


def chain_of(layers: Sequence[str]) -> list[str]:
    """What Docker calls each layer on top of those before it: SHA-256, hexadecimal.

    https://github.com/opencontainers/image-spec/blob/v1.0.2/config.md#layer-chainid
    """
    chain: list[str] = []
    for layer in layers:
        above = hashlib.sha256(f"sha256:{chain[-1]} {layer}".encode()).hexdigest() if chain else ""
        chain.append(above or layer.removeprefix("sha256:"))
    return chain
