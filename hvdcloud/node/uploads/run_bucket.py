"""The bucket of a run, as this node opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.node.bucket import open_bucket_here
from hvdcloud.storage.base import RETRY_SECONDS

if TYPE_CHECKING:
    from hvdcloud.node.records.spec import Spec
    from hvdcloud.storage.base import Bucket


def open_run_bucket(spec: Spec, *, retry_seconds: float = RETRY_SECONDS) -> Bucket:
    """As `open_bucket_here`, and raises what that raises."""
    return open_bucket_here(spec.bucket, endpoint=spec.bucket_endpoint, retry_seconds=retry_seconds)
