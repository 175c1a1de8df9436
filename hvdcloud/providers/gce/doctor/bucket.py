"""What is checked of a bucket of Cloud Storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from google.api_core.exceptions import Forbidden, NotFound
from google.cloud.storage.retry import DEFAULT_RETRY

from hvdcloud.checks import Finding, NoAnswerError, failed, fine, warning
from hvdcloud.errors import CredentialsError, HvdcloudError
from hvdcloud.providers.gce.doctor.account import RETRY_SECONDS, Login
from hvdcloud.storage.gcs_client import make_client
from hvdcloud.storage.gcs_errors import explain

_PERMISSIONS = tuple(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list"))
"""What pulling and builds take, and what the role roles/storage.objectUser has; nodes have less (ops/node_rights)."""
# Where multi-regions and predefined dual-regions are: https://cloud.google.com/storage/docs/locations
_WIDE = {"US": ("us-",), "EU": ("europe-",), "ASIA": ("asia-",), "NAM4": ("us-",), "EUR4": ("europe-",)}


def check_bucket(login: Login, url: str, *, region: str | None) -> Finding:
    """Whether it exists, whether we may use it, and what in its settings costs money.

    Args:
        url: `gs://BUCKET[/PREFIX]`.
        region: where nodes are made first; None: not known.
    """
    if not url.startswith("gs://"):
        return failed(
            f"the bucket {url} is a folder of this machine, which VMs cannot reach",
            hint="hvdcloud setup makes a bucket; or set checkpoints.bucket to gs://BUCKET[/PREFIX]",
        )
    name, _ = bucket_and_folder(url)
    with asking(f"looking at the bucket gs://{name}", url=url):
        bucket, patience = storage_client(login).bucket(name), patient()
        try:
            allowed = bucket.test_iam_permissions([*_PERMISSIONS], **patience)
        except NotFound:
            place = f" --location={region}" if region else ""
            return failed(
                f"there is no bucket gs://{name}",
                hint=f"gcloud storage buckets create gs://{name}{place} --project={login.project} "
                "--uniform-bucket-level-access; or hvdcloud setup makes one",
            )
        if lacking := [each for each in _PERMISSIONS if each not in allowed]:
            return failed(
                f"{login.name} lacks {', '.join(lacking)} in gs://{name}",
                hint=f"the bucket's owner can: gcloud storage buckets add-iam-policy-binding gs://{name} "
                f"--member={login.member} --role=roles/storage.objectUser",
                error=CredentialsError,
            )
        # Its settings are extra: roles/storage.objectUser may not read them.
        with contextlib.suppress(Forbidden):
            bucket.reload(**patience)
            return _settings(url, bucket, region=region)
    return fine(f"{url} can be written")


def bucket_and_folder(url: str) -> tuple[str, str]:
    """The parts of `gs://BUCKET[/FOLDER]`."""
    bucket, _, folder = url.removeprefix("gs://").partition("/")
    return bucket, folder


def storage_client(login: Login) -> Any:
    """Google's client, which uses another endpoint without credentials, as buckets are opened (storage/open.py)."""
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    return make_client(endpoint=endpoint, credentials=None if endpoint else login.credentials)


def patient() -> dict[str, Any]:
    """How long a request of a check may take."""
    return {"timeout": RETRY_SECONDS, "retry": DEFAULT_RETRY.with_timeout(RETRY_SECONDS)}


@contextlib.contextmanager
def asking(doing: str, *, url: str) -> Iterator[None]:
    """Raises what Google's library raises as an error of ours: CredentialsError, or NoAnswerError."""
    try:
        yield
    except HvdcloudError:
        raise
    except Exception as error:
        found = explain(error, doing=doing, url=url)
        if isinstance(found, HvdcloudError) and not isinstance(found, CredentialsError):
            raise NoAnswerError(found.message, hint=found.hint) from error
        raise found from error


def elsewhere(bucket: Any, region: str | None) -> str:
    """Where a bucket is, if traffic from the nodes' region to it costs money; empty: there, or nobody knows."""
    location = str(bucket.location or "").upper()
    here = region is None or location in ("", region.upper()) or region.startswith(_WIDE.get(location, "-"))
    return "" if here or bucket.location_type == "dual-region" else location.lower()


def _settings(url: str, bucket: Any, *, region: str | None) -> Finding:
    location = str(bucket.location or "").lower()
    said = f"{url} can be written" + (f"; it is in {location}" if location else "")
    if place := elsewhere(bucket, region):
        return warning(
            f"{said}; nodes start in {region}: traffic between regions costs money, and checkpoints take longer",
            hint=f"use a bucket in {region}, or gce.zones in {place}",
        )
    return fine(said)
