"""Buckets as a node opens them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.node import machine

if TYPE_CHECKING:
    from hvdcloud.storage.base import Bucket


def open_bucket_here(url: str, *, endpoint: str | None) -> Bucket:
    """A folder, or a bucket of Cloud Storage with the rights of the VM's service account.

    Args:
        endpoint: as for `open_bucket`.

    Raises:
        HvdcloudError: the URL is not one of a bucket, or there are no credentials.
    """
    from hvdcloud.storage.open import open_bucket

    credentials = None
    if url.startswith("gs://") and machine.on_vm():
        from hvdcloud.storage.gcs_client import vm_credentials

        credentials = vm_credentials()
    return open_bucket(url, endpoint=endpoint, credentials=credentials)
