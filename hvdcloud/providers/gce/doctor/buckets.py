"""What is checked of buckets of Cloud Storage: that of the checkpoints, and those of data sets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from google.api_core.exceptions import NotFound
from google.cloud.storage.retry import DEFAULT_RETRY

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
_PERMISSIONS = tuple(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list"))
"""What pulling and builds take, and what the role roles/storage.objectUser has; nodes have less (ops/node_rights)."""
_PATIENCE = {"timeout": RETRY_SECONDS, "retry": DEFAULT_RETRY.with_timeout(RETRY_SECONDS)}
"""How long a request of a check may take."""


def check_bucket(login: Login, url: str) -> Finding:
    """Whether the bucket of the checkpoints, `gs://BUCKET[/PREFIX]`, exists, and whether we may use it."""
    if not url.startswith("gs://"):
        return failed(
            f"the bucket {url} is a folder of this machine, which VMs cannot reach",
            hint="hvdcloud setup makes a bucket; or set checkpoints.bucket to gs://BUCKET[/PREFIX]",
        )
    name, _ = _bucket_and_folder(url)
    with _asking(f"looking at the bucket gs://{name}", url=url):
        try:
            allowed = _client(login).bucket(name).test_iam_permissions([*_PERMISSIONS], **_PATIENCE)
        except NotFound:
            return failed(
                f"there is no bucket gs://{name}",
                hint=f"hvdcloud setup makes one; or gcloud storage buckets create gs://{name} "
                f"--project={login.project} --uniform-bucket-level-access --location=REGION",
            )
    if lacking := [each for each in _PERMISSIONS if each not in allowed]:
        return failed(
            f"{login.email or 'this account'} lacks {', '.join(lacking)} in gs://{name}",
            hint=f"the bucket's owner can: gcloud storage buckets add-iam-policy-binding gs://{name} "
            f"--member={login.member} --role=roles/storage.objectUser",
            error=CredentialsError,
        )
    return fine(f"{url} can be written")


def check_data(login: Login, sets: Mapping[str, DataConfig]) -> Finding:
    """Whether the data sets, all with a gs:// source, hold objects, and how large they are.

    Raises UsageError: one holds none. CredentialsError: it may not be read.
    """
    client = _client(login)

    def look_at(name: str) -> str:
        source = sets[name].source
        bucket, folder = _bucket_and_folder(source)
        listing = {"prefix": f"{folder}/" if folder else None, "fields": "items(name,size),nextPageToken"}
        with _asking(f"listing data set {name}", url=source):
            try:
                blobs = list(client.list_blobs(bucket, max_results=MOST_OBJECTS, **listing, **_PATIENCE))
            except NotFound:
                blobs = []
        sizes = [int(blob.size or 0) for blob in blobs if not blob.name.endswith("/")]
        if not sizes:
            hint = f"gcloud storage rsync --recursive DIR {source} uploads a folder; or correct data.{name}"
            raise UsageError(f"data.{name}: {source} holds no objects", hint=hint)
        least = "at least " if len(blobs) == MOST_OBJECTS else ""
        return f"{name}: {least}{size(sum(sizes))} in {counted(len(sizes), 'object')} of {source}"

    return fine("; ".join(side_by_side(look_at, list(sets), only_reads=True)))


def _bucket_and_folder(url: str) -> tuple[str, str]:
    """The parts of `gs://BUCKET[/FOLDER]`."""
    bucket, _, folder = url.removeprefix("gs://").partition("/")
    return bucket, folder


def _client(login: Login) -> Any:
    """Google's client, which uses another endpoint without credentials, as buckets are opened (storage/open.py)."""
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    return make_client(endpoint=endpoint, credentials=None if endpoint else login.credentials)


@contextlib.contextmanager
def _asking(doing: str, *, url: str) -> Iterator[None]:
    """Raises what Google's library raises as an error of ours: CredentialsError, or NoAnswerError."""
    try:
        yield
    except Exception as error:
        found = explain(error, doing=doing, url=url)
        if isinstance(found, HvdcloudError) and not isinstance(found, CredentialsError):
            raise NoAnswerError(found.message, hint=found.hint) from error
        raise found from error
