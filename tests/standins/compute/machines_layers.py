"""Image layers that machines have pulled, on the disks of those that are made after them.

Unpacking an image of a gigabyte takes a core 15 s, again for every machine. Here a new machine's disk has what earlier
ones pulled, as if it were made from a disk image with the layers on it: `docker pull` asks the registry as ever, and
finds that these layers exist.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Layers are never written again, so that hard links do.
_LEND = """
set -e
from=/volumes/$1/_data to=/volumes/$2/_data
[ -e "$from/image" ] || exit 0
cp -al "$from/overlay2" "$to"
cp -a "$from/image" "$to"
"""
# A layer names those below it by links that its engine chose: it is only kept where these are kept too.
_KEEP = """
set -e
from=/volumes/$1/_data/ to=/volumes/$2/_data/
layers=image/overlay2/layerdb/sha256
[ -e "$from$layers" ] || exit 0
mkdir -p "$to$layers" "$to/overlay2/l"
cd "$from"
for layer in "$layers"/*; do
    [ -e "$layer/cache-id" ] && [ ! -e "$to$layer" ] || continue
    id=overlay2/$(cat "$layer/cache-id")
    below=$(cat "$id/lower" 2>/dev/null || true)
    echo "${#below} $layer $id $below"
done | sort -n | while read -r _ layer id below; do
    missing=
    for link in $(echo "$below" | tr : ' '); do [ -L "${to}overlay2/$link" ] || missing=$link; done
    [ -z "$missing" ] || continue
    cp -al "$id" "${to}overlay2/"
    cp -a "overlay2/l/$(cat "$id/link")" "${to}overlay2/l/"
    cp -a "$layer" "$to$layers/"
done
cp -au image/overlay2/distribution "${to}image/overlay2/"
"""


# From the engine's own folder, in which the volumes are: a hard link needs both ends under one mount.
_TAKE = """
set -e
to=/docker/volumes/$1/_data
shift
layers=image/overlay2/layerdb/sha256
mkdir -p "$to/$layers" "$to/overlay2/l" "$to/image/overlay2/distribution"
cd /docker
for layer in "$@"; do
    [ ! -e "$to/$layers/$layer" ] || continue
    id=overlay2/$(cat "$layers/$layer/cache-id")
    cp -al "$id" "$to/overlay2/"
    cp -a "overlay2/l/$(cat "$id/link")" "$to/overlay2/l/"
    cp -a "$layers/$layer" "$to/$layers/"
done
"""


class Layers:
    """The layers in a volume of their own, which one process uses.

    Args:
        client: docker-py's.
        image: has a shell and GNU's cp.
        labels: of the volume.

    Raises:
        docker.errors.APIError: the engine refuses.
    """

    def __init__(self, client: Any, *, image: str, labels: Mapping[str, str]) -> None:
        self._client = client
        self._image = image
        self._labels = labels
        self._volume = client.volumes.create(f"hvdcloud-emulator-layers-{secrets.token_hex(4)}", labels=dict(labels))
        self._folder = Path(self._volume.attrs["Mountpoint"]).parent.parent
        self._lock = threading.Lock()

    def lend(self, volume: str) -> None:
        """Put what there is on a new machine's disk.

        Args:
            volume: the machine's /var/lib/docker, still empty.
        """
        self._run(_LEND, self._volume.name, volume)

    def take(self, image: str) -> None:
        """Take the layers of an image of this machine's own engine, which has them with the same driver."""
        chain: list[str] = []
        for layer in self._client.images.get(image).attrs["RootFS"]["Layers"]:
            # https://github.com/opencontainers/image-spec/blob/v1.0.2/config.md#layer-chainid
            above = f"sha256:{hashlib.sha256(f'{chain[-1]} {layer}'.encode()).hexdigest()}" if chain else layer
            chain.append(above)
        root = self._client.info()["DockerRootDir"]
        names = [each.removeprefix("sha256:") for each in chain]
        self._run(_TAKE, self._volume.name, *names, volumes={root: {"bind": "/docker"}})

    def keep(self, volume: str) -> None:
        """Take what is new on the disk of a machine that is off."""
        self._run(_KEEP, volume, self._volume.name)

    def close(self) -> None:
        """Delete them."""
        self._volume.remove()

    def _run(self, script: str, *words: str, volumes: Mapping[str, Any] | None = None) -> None:
        with self._lock:
            self._client.containers.run(
                self._image,
                ["sh", "-c", script, "sh", *words],
                labels=dict(self._labels),
                network_mode="none",
                remove=True,
                volumes=dict(volumes or {str(self._folder): {"bind": "/volumes"}}),
            )
