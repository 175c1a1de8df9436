"""A run's bucket, opened with the run's own credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.node import paths

if TYPE_CHECKING:
    from hvdcloud.node.run.spec import Spec
    from hvdcloud.storage.base import Bucket


def open_run_bucket(spec: Spec) -> Bucket:
    """The run's bucket, with the run's credentials if there are any.

    Raises:
        HvdcloudError: the URL is not one of a bucket, or the credentials cannot be used.
    """
    from hvdcloud.storage.open import open_bucket

    credentials = paths.credentials_file(spec.run)
    return open_bucket(
        spec.bucket,
        endpoint=spec.bucket_endpoint,
        credentials_file=credentials if credentials.exists() else None,
    )
