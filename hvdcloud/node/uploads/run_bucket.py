"""The bucket of a run, as this node opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.node import machine
from hvdcloud.storage.base import RETRY_SECONDS

if TYPE_CHECKING:
    from hvdcloud.node.records.spec import Spec
    from hvdcloud.storage.base import Bucket


def open_run_bucket(spec: Spec, *, retry_seconds: float = RETRY_SECONDS) -> Bucket:
    """A folder, or a bucket of Cloud Storage with the rights of the VM's service account.

    Args:
        retry_seconds: how long each request is retried.

    Raises:
        HvdcloudError: the URL is not one of a bucket, or there are no credentials.
    """
    from hvdcloud.storage.open import open_bucket

    credentials = None
    if spec.bucket.startswith("gs://") and machine.on_vm():
        from hvdcloud.storage.gcs_client import vm_credentials

        credentials = vm_credentials()
    return open_bucket(spec.bucket, endpoint=spec.bucket_endpoint, credentials=credentials, retry_seconds=retry_seconds)
