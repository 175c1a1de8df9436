"""What is checked of buckets of Cloud Storage: that of the checkpoints, and those of data sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Finding, NoAnswerError, failed, fine
from hvdcloud.errors import CredentialsError, HvdcloudError, UsageError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.doctor.account import RETRY_SECONDS, Login
from hvdcloud.storage.gcs_client import make_client
from hvdcloud.storage.gcs_errors import explain
from hvdcloud.units import counted, size

if TYPE_CHECKING:
    from hvdcloud.config.data import DataConfig

MOST_OBJECTS = 10_000
"""Of a data set, that are listed; one that has more is at least as large as those."""


def check_bucket(login: Login, url: str) -> Finding:
    """Whether the bucket of the checkpoints, `gs://BUCKET[/PREFIX]`, exists, and whether we may look into it."""
    if not url.startswith("gs://"):
        return failed(
            f"the bucket {url} is a folder of this machine, which VMs cannot reach",
            hint="hvdcloud setup makes a bucket; or set checkpoints.bucket to gs://BUCKET[/PREFIX]",
        )
    if _objects(login, url, most=1) is None:
        name = url.removeprefix("gs://").partition("/")[0]
        create = f"gcloud storage buckets create gs://{name} --project={login.project} --uniform-bucket-level-access"
        return failed(f"there is no bucket gs://{name}", hint=f"hvdcloud setup makes one; or {create}")
    return fine(f"{url} can be read")


def check_data(login: Login, sets: Mapping[str, DataConfig]) -> Finding:
    """Whether the data sets, all with a gs:// source, hold objects, and how large they are.

    Raises UsageError: one holds none. CredentialsError: it may not be read.
    """

    def look_at(name: str) -> str:
        source = sets[name].source
        objects = _objects(login, source, most=MOST_OBJECTS) or []
        sizes = [int(each.size or 0) for each in objects if not each.name.endswith("/")]
        if not sizes:
            hint = f"gcloud storage rsync --recursive DIR {source} uploads a folder; or correct data.{name}"
            raise UsageError(f"data.{name}: {source} holds no objects", hint=hint)
        least = "at least " if len(objects) == MOST_OBJECTS else ""
        return f"{name}: {least}{size(sum(sizes))} in {counted(len(sizes), 'object')} of {source}"

    return fine("; ".join(side_by_side(look_at, list(sets), only_reads=True)))


def _objects(login: Login, url: str, *, most: int) -> list[Any] | None:
    """The first objects below `gs://BUCKET[/FOLDER]`; None: there is no such bucket.

    Raises CredentialsError: they may not be listed. NoAnswerError: for any other reason they cannot be.
    """
    from google.api_core.exceptions import NotFound
    from google.cloud.storage.retry import DEFAULT_RETRY

    bucket, _, folder = url.removeprefix("gs://").partition("/")
    # Another endpoint is used without credentials, as buckets are opened (storage/open.py).
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    client = make_client(endpoint=endpoint, credentials=None if endpoint else login.credentials)
    try:
        found = client.list_blobs(
            bucket,
            prefix=f"{folder}/" if folder else None,
            max_results=most,
            fields="items(name,size),nextPageToken",
            timeout=RETRY_SECONDS,
            retry=DEFAULT_RETRY.with_timeout(RETRY_SECONDS),
        )
        return list(found)
    except NotFound:
        return None
    except Exception as error:
        explained = explain(error, doing="listing objects", url=url)
        if isinstance(explained, HvdcloudError) and not isinstance(explained, CredentialsError):
            raise NoAnswerError(explained.message, hint=explained.hint) from error
        raise explained from error
