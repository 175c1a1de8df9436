"""Where a data set is: a URL as a user types it, and the objects behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.context import STORAGE_ENDPOINT_VARIABLE

if TYPE_CHECKING:
    from hvdcloud.storage.base import Bucket, ObjectInfo


def data_source(url: str) -> str:
    """The URL as `data` of hvdcloud.yaml takes it. Raises UsageError: it does not."""
    from pydantic import TypeAdapter, ValidationError

    from hvdcloud.config.data import DataSource

    try:
        source: str = TypeAdapter(DataSource).validate_python(url)
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UsageError(why, hint="gs://BUCKET/PREFIX names a prefix of a bucket") from None
    return source


def opened_source(url: str) -> Bucket:
    """The bucket or folder; no request is made yet."""
    from hvdcloud.storage.open import open_bucket

    return open_bucket(url, endpoint=os.environ.get(STORAGE_ENDPOINT_VARIABLE) or None)


def objects_of(bucket: Bucket) -> Iterator[ObjectInfo]:
    """The data set's objects, page by page; names that end in "/", which stand for folders, are left out.

    Raises UsageError: there is no such bucket.
    """
    try:
        for info in bucket.list(""):
            if not info.name.endswith("/") and info.name:
                yield info
    except UsageError as error:
        name = "/".join(bucket.url.split("/")[:3])
        raise UsageError(error.message, hint=f"gcloud storage buckets create {name}, or name another") from error
