"""What is checked of the data sets: that they exist, may be read and fit the disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.api_core.exceptions import Forbidden, NotFound, Unauthorized

from hvdcloud.checks import Finding, failed, fine, warning
from hvdcloud.errors import CapacityError, CredentialsError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.doctor.bucket import asking, bucket_and_folder, elsewhere, patient, storage_client
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.config.data import DataConfig
    from hvdcloud.providers.gce.doctor.account import Login

LISTING_SECONDS = 2.0
"""A set that takes longer to list, some 20,000 objects, is at least as large as what was listed."""
PAGE_OBJECTS = 1000
_GB = 2**30
VM_IMAGE_GB = 10
"""Of the boot disk, what no data set can have."""
CONTAINER_IMAGE_GB = 15.0
"""What else is on the boot disk, roughly: the unpacked image, and checkpoints on their way."""


def check_data(
    login: Login, sets: Mapping[str, DataConfig], settings: Settings, *, nodes: int, region: str | None
) -> Finding:
    """Whether the data sets exist, may be read and fit the nodes' disks.

    Args:
        sets: those with a gs:// source.
        region: where nodes are made first; None: not known.
    """
    client = storage_client(login)

    def look_at(name: str) -> tuple[str, int, str] | Finding:
        """In words, how many bytes each node gets, and in which other region it is."""
        data = sets[name]
        bucket, folder = bucket_and_folder(data.source)
        deadline, objects, total, least = time.monotonic() + LISTING_SECONDS, 0, 0, ""
        prefix, fields = f"{folder}/" if folder else None, "items(name,size),nextPageToken"
        with asking(f"looking at {data.source}", url=data.source):
            try:
                listing = client.list_blobs(bucket, prefix=prefix, fields=fields, page_size=PAGE_OBJECTS, **patient())
                for page in listing.pages:
                    sizes = [int(blob.size or 0) for blob in page if not blob.name.endswith("/")]
                    objects, total = objects + len(sizes), total + sum(sizes)
                    if listing.next_page_token and time.monotonic() > deadline:
                        least = "at least "
                        break
            except NotFound:
                return failed(
                    f"data.{name}: there is no bucket gs://{bucket}",
                    hint=f"correct data.{name}; or gcloud storage buckets create gs://{bucket} "
                    f"--project={login.project} --uniform-bucket-level-access, then gcloud storage rsync --recursive "
                    f"DIR {data.source}",
                )
            except (Forbidden, Unauthorized):
                return failed(
                    f"data.{name}: {login.name} may not list {data.source}",
                    hint=f"the bucket's owner can: gcloud storage buckets add-iam-policy-binding gs://{bucket} "
                    f"--member={login.member} --role=roles/storage.objectViewer",
                    error=CredentialsError,
                )
            place = ""
            # The right to read objects does not include the right to look at their bucket.
            with contextlib.suppress(Forbidden, Unauthorized):
                place = elsewhere(client.get_bucket(bucket, **patient()), region)
        if not objects and not least:
            hint = f"gcloud storage rsync --recursive DIR {data.source} uploads a folder; or correct data.{name}"
            return failed(f"data.{name}: {data.source} holds no objects", hint=hint)
        shard = data.per_node == "shard" and nodes > 1
        said = f"{name}: {least}{size(total)} in {counted(objects, 'object')} of {data.source}"
        said += f"{f' in {place}' if place else ''}{', each node its share' if shard else ''}"
        return said, -(-total // nodes) if shard else total, place

    found = side_by_side(look_at, list(sets), only_reads=True)
    measured = [each for each in found if not isinstance(each, Finding)]
    if trouble := [each for each in found if isinstance(each, Finding)]:
        return trouble[0]
    if problem := too_large(sum(each for _, each, _ in measured), settings):
        return problem
    said = "; ".join(each for each, *_ in measured)
    for _, _, place in measured:
        if place:
            hint = f"use a bucket in {region}, or gce.zones in {place}"
            return warning(f"{said}; traffic between regions takes longer and costs money at every fetch", hint=hint)
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
