"""The bucket that a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hvdcloud.errors import UsageError
from hvdcloud.storage.base import RETRY_SECONDS, Bucket
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.gcs import GcsBucket


def storage_endpoint() -> str | None:
    """Another Cloud Storage endpoint than Google's, from the variable that Google's client libraries read."""
    return os.environ.get("STORAGE_EMULATOR_HOST") or None


def open_bucket(
    url: str, *, endpoint: str | None = None, credentials: Any = None, retry_seconds: float = RETRY_SECONDS
) -> Bucket:
    """The bucket that `file:///DIR` or `gs://BUCKET[/PREFIX]` names; no request is made yet.

    Args:
        endpoint: another Cloud Storage endpoint, such as `http://127.0.0.1:9023`; default: `storage_endpoint`.
            Without `credentials` it is accessed anonymously.
        credentials: of google-auth, such as `vm_credentials()`; default: Application Default Credentials.
        retry_seconds: how long each request is retried while the network or the service fails.

    Raises UsageError: any other URL; CredentialsError: no Google credentials, or not readable.
    """
    hint = "set checkpoints.bucket in hvdcloud.yaml to gs://BUCKET[/PREFIX] or file:///DIR"
    if url.startswith("file:"):
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
            raise UsageError(f"{url!r} does not name a folder of this machine", hint=hint)
        return FolderBucket(Path(path))
    if url.startswith("gs://"):
        bucket, _, prefix = url.removeprefix("gs://").partition("/")
        if not bucket:
            raise UsageError(f"{url!r} names no bucket", hint=hint)
        return GcsBucket(
            bucket=bucket,
            prefix=prefix.strip("/"),
            endpoint=endpoint or storage_endpoint(),
            credentials=credentials,
            retry_seconds=retry_seconds,
        )
    raise UsageError(f"{url!r} is not a bucket", hint=hint)
