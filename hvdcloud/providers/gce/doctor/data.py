"""What is checked of the data sets: that they exist, may be read and fit the disk; their size, place and cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.api_core.exceptions import Forbidden, NotFound, Unauthorized

from hvdcloud.checks import Finding, failed, fine, warning
from hvdcloud.errors import CapacityError, CredentialsError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.doctor.bucket import asking, bucket_and_folder, in_region, patient, storage_client
from hvdcloud.providers.gce.money import transfer
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.units import counted, dollars, size

if TYPE_CHECKING:
    from hvdcloud.config.data import DataConfig
    from hvdcloud.providers.gce.doctor.permissions import Login

LISTING_SECONDS = 2.0
"""A set that takes longer to list, some 20,000 objects, is at least as large as what was listed."""
PAGE_OBJECTS = 1000
_GB = 2**30
VM_IMAGE_GB = 10
"""Of the boot disk, what no data set can have."""
CONTAINER_IMAGE_GB = 15.0
"""What else is on the boot disk, roughly: the unpacked image, and checkpoints on their way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSize:
    """A data set, as far as it was listed."""

    name: str
    source: str
    objects: int
    bytes: int
    whole: bool
    """Its listing ended in time."""
    shard: bool
    """Each node gets its share."""
    location: str
    """`us-central1`, `us`; empty: not known."""

    def bytes_of_node(self, nodes: int) -> int:
        """What one node gets."""
        return -(-self.bytes // nodes) if self.shard else self.bytes

    def bytes_of_all(self, nodes: int) -> int:
        """What the bucket sends."""
        return self.bytes if self.shard else self.bytes * nodes


def check_data(
    login: Login, sets: Mapping[str, DataConfig], settings: Settings, *, nodes: int, region: str | None
) -> Finding:
    """Whether the data sets exist, may be read and fit the nodes' disks.

    Args:
        sets: those with a gs:// source.
        region: where nodes are made first; None: not known.
    """
    client = storage_client(login)
    found = side_by_side(lambda each: _look_at(client, login, *each), list(sets.items()), only_reads=True)
    measured = [each for each in found if isinstance(each, SetSize)]
    if trouble := [each for each in found if isinstance(each, Finding)]:
        return trouble[0]
    if problem := too_large(sum(each.bytes_of_node(nodes) for each in measured), settings):
        return problem
    said = "; ".join(_described(each, nodes=nodes, region=region) for each in measured)
    if foreign := [each for each in measured if _rate_between(each.location, region) != 0]:
        hint = f"use a bucket in {region}, or gce.zones in {foreign[0].location}"
        return warning(f"{said}; traffic between regions takes longer and costs money", hint=hint)
    return fine(said)


def too_large(each_node: int, settings: Settings) -> Finding | None:
    """Why a node has no room for that many bytes; None: it has."""
    room = (settings.disk_gb - VM_IMAGE_GB) * _GB
    free = room - CONTAINER_IMAGE_GB * _GB
    if each_node <= free:
        return None
    message = (
        f"the data sets are {size(each_node)} on each node, whose boot disk has room for {size(max(0, int(free)))}"
    )
    needed_gb = settings.disk_gb + -(-(each_node - int(free)) // _GB)
    hint = f"write gce.disk_gb: {-(-needed_gb // 50) * 50}"
    if each_node <= room:
        return warning(f"{message} beside the image, roughly", hint=hint)
    return failed(message, hint=hint, error=CapacityError)


def _look_at(client: Any, login: Login, name: str, data: DataConfig) -> SetSize | Finding:
    bucket, folder = bucket_and_folder(data.source)
    with asking(f"looking at {data.source}", url=data.source):
        try:
            objects, total, whole = _list(client, bucket, folder)
        except NotFound:
            return failed(
                f"data.{name}: there is no bucket gs://{bucket}",
                hint=f"correct data.{name}; or gcloud storage buckets create gs://{bucket} --project={login.project} "
                f"--uniform-bucket-level-access, then gcloud storage rsync --recursive DIR {data.source}",
            )
        except (Forbidden, Unauthorized):
            return failed(
                f"data.{name}: {login.email or 'this account'} may not list {data.source}",
                hint=f"the bucket's owner can: gcloud storage buckets add-iam-policy-binding gs://{bucket} "
                f"--member={login.member} --role=roles/storage.objectViewer",
                error=CredentialsError,
            )
        try:
            location = str(client.get_bucket(bucket, **patient()).location or "").lower()
        except (Forbidden, Unauthorized):
            # The right to read objects does not include the right to look at their bucket.
            location = ""
    if not objects and whole:
        return failed(
            f"data.{name}: {data.source} holds no objects",
            hint=f"gcloud storage rsync --recursive DIR {data.source} uploads a folder; or correct data.{name}",
        )
    return SetSize(
        name=name,
        source=data.source,
        objects=objects,
        bytes=total,
        whole=whole,
        shard=data.per_node == "shard",
        location=location,
    )


def _list(client: Any, bucket: str, folder: str) -> tuple[int, int, bool]:
    """Objects, bytes, and whether these are all."""
    deadline = time.monotonic() + LISTING_SECONDS
    objects = total = 0
    listing = client.list_blobs(
        bucket,
        prefix=f"{folder}/" if folder else None,
        fields="items(name,size),nextPageToken",
        page_size=PAGE_OBJECTS,
        **patient(),
    )
    for page in listing.pages:
        sizes = [int(blob.size or 0) for blob in page if not blob.name.endswith("/")]
        objects, total = objects + len(sizes), total + sum(sizes)
        if listing.next_page_token and time.monotonic() > deadline:
            return objects, total, False
    return objects, total, True


def _described(data: SetSize, *, nodes: int, region: str | None) -> str:
    """`train: 12.4 GB in 1,281 objects of gs://b/train in us-central1`."""
    least = "" if data.whole else "at least "
    where = f" in {data.location}" if data.location else ""
    said = f"{data.name}: {least}{size(data.bytes)} in {counted(data.objects, 'object')} of {data.source}{where}"
    said += ", each node its share" if data.shard and nodes > 1 else ""
    rate = _rate_between(data.location, region)
    if rate == 0:
        return said
    if rate is None:
        return f"{said}, and what traffic to {region} costs is not known"
    cost = dollars(rate * data.bytes_of_all(nodes) / _GB)
    return f"{said}, whose traffic to {region} costs {least}{cost} ({dollars(rate)}/GB) at every fetch"


def _rate_between(location: str, region: str | None) -> float | None:
    """Dollars a GB; 0 where one of the two is not known."""
    if not location or region is None or in_region(location, region):
        return 0.0
    return transfer.dollars_per_gb(location, region)
