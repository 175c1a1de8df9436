"""What is checked of the data sets: that they exist, may be read and fit the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.api_core.exceptions import Forbidden, NotFound, Unauthorized

from hvdcloud.checks import Finding, failed, fine, warning
from hvdcloud.errors import CapacityError, CredentialsError, UsageError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.doctor.bucket import asking, bucket_and_folder, elsewhere, patient, storage_client
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.config.data import DataConfig
    from hvdcloud.providers.gce.doctor.account import Login

MOST_OBJECTS = 10_000
"""That are listed; a set that has more is at least as large as those."""
_GB = 2**30
VM_IMAGE_GB = 10
"""Of the boot disk, what no data set can have."""
CONTAINER_IMAGE_GB = 15.0
"""What else is on the boot disk, roughly: the unpacked image, and checkpoints on their way."""


def check_data(
    login: Login, sets: Mapping[str, DataConfig], settings: Settings, *, nodes: int, region: str | None
) -> Finding:
    """Whether the data sets fit the nodes' disks, and where they are.

    Args:
        sets: those with a gs:// source.
        region: where nodes are made first; None: not known.

    Raises UsageError: one is not there. CredentialsError: it may not be read.
    """
    client = storage_client(login)

    def look_at(name: str) -> tuple[str, int, str]:
        """In words, how many bytes each node gets, and in which other region it is."""
        data, place = sets[name], ""
        bucket, folder = bucket_and_folder(data.source)
        listing = {"prefix": f"{folder}/" if folder else None, "fields": "items(name,size),nextPageToken"}
        with asking(f"looking at {data.source}", url=data.source):
            try:
                blobs = list(
                    client.list_blobs(bucket, page_size=1000, max_results=MOST_OBJECTS, **listing, **patient())
                )
            except NotFound:
                raise UsageError(
                    f"data.{name}: there is no bucket gs://{bucket}",
                    hint=f"correct data.{name}; or gcloud storage buckets create gs://{bucket} "
                    f"--project={login.project} --uniform-bucket-level-access, then gcloud storage rsync --recursive "
                    f"DIR {data.source}",
                ) from None
            except (Forbidden, Unauthorized):
                raise CredentialsError(
                    f"data.{name}: {login.name} may not list {data.source}",
                    hint=f"the bucket's owner can: gcloud storage buckets add-iam-policy-binding gs://{bucket} "
                    f"--member={login.member} --role=roles/storage.objectViewer",
                ) from None
            # The right to read objects does not include the right to look at their bucket.
            with contextlib.suppress(Forbidden, Unauthorized):
                place = elsewhere(client.get_bucket(bucket, **patient()), region)
        sizes = [int(blob.size or 0) for blob in blobs if not blob.name.endswith("/")]
        if not sizes:
            hint = f"gcloud storage rsync --recursive DIR {data.source} uploads a folder; or correct data.{name}"
            raise UsageError(f"data.{name}: {data.source} holds no objects", hint=hint)
        least = "at least " if len(blobs) == MOST_OBJECTS else ""
        shard = data.per_node == "shard" and nodes > 1
        said = f"{name}: {least}{size(sum(sizes))} in {counted(len(sizes), 'object')} of {data.source}"
        said += f"{f' in {place}' if place else ''}{', each node its share' if shard else ''}"
        return said, -(-sum(sizes) // nodes) if shard else sum(sizes), place

    measured = side_by_side(look_at, list(sets), only_reads=True)
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
