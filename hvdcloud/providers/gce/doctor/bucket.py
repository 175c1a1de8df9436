"""What `hvdcloud doctor` looks at in a bucket of Cloud Storage."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hvdcloud.checks import Finding, failed, fine, warning
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.doctor.permissions import Login

_BASE_PATH = "/storage/v1/"
_PERMISSIONS = tuple(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list"))
"""What pulling and builds take, and what the role roles/storage.objectUser has; nodes have less (node_rights.py)."""
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
            error=UsageError,
        )
    name, _ = bucket_and_folder(url)
    api = storage(login)

    def answer(what: str) -> Any:
        try:
            if what == "rights":
                return api.read(f"b/{name}/iam/testPermissions", {"permissions": _PERMISSIONS})
            return api.read(f"b/{name}", {"fields": "location,locationType,softDeletePolicy"})
        except ApiError as error:
            return error

    rights, bucket = side_by_side(answer, ("rights", "bucket"), only_reads=True)
    if isinstance(rights, ApiError):
        if rights.status == 404:
            place = f" --location={region}" if region else ""
            return failed(
                f"there is no bucket gs://{name}",
                hint=f"gcloud storage buckets create gs://{name}{place} --project={login.project} "
                "--uniform-bucket-level-access; or hvdcloud setup makes one",
                error=UsageError,
            )
        raise rights.as_user_error(doing=f"look at the bucket gs://{name}") from rights
    lacking = [each for each in _PERMISSIONS if each not in rights.get("permissions", [])]
    if lacking:
        return failed(
            f"{login.email or 'this account'} lacks {', '.join(lacking)} in gs://{name}",
            hint=f"the bucket's owner can: gcloud storage buckets add-iam-policy-binding gs://{name} "
            f"--member={login.member} --role=roles/storage.objectUser",
            error=CredentialsError,
        )
    # Its settings are extra: roles/storage.objectUser may not read them.
    return fine(f"{url} can be written") if isinstance(bucket, ApiError) else _settings(url, bucket, region=region)


def bucket_and_folder(url: str) -> tuple[str, str]:
    """The parts of `gs://BUCKET[/FOLDER]`."""
    bucket, _, folder = url.removeprefix("gs://").partition("/")
    return bucket, folder


def bucket_policy(login: Login, name: str) -> dict[str, Any]:
    """Who may do what in a bucket. Raises ApiError: it cannot be read."""
    found: dict[str, Any] = storage(login).read(f"b/{name}/iam", {"optionsRequestedPolicyVersion": 3})
    return found


def in_region(location: str, region: str) -> bool:
    """Whether a bucket's location is the region, or a multi-region that it is a part of."""
    return region.upper() == location.upper() or region.startswith(_WIDE.get(location.upper(), "-"))


def _settings(url: str, bucket: dict[str, Any], *, region: str | None) -> Finding:
    location = str(bucket.get("location", "")).upper()
    said = f"{url} can be written" + (f"; it is in {location.lower()}" if location else "")
    here = region is None or not location or in_region(location, region)
    if not here and bucket.get("locationType") != "dual-region":
        return warning(
            f"{said}; nodes start in {region}: traffic between regions costs money, and checkpoints take longer",
            hint=f"use a bucket in {region}, or gce.zones in {location.lower()}",
        )
    seconds = int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if seconds:
        days = f"{seconds / 86400:g} days"
        return fine(f"{said}; what is deleted can be restored for {days}, and is billed so long (soft delete)")
    return fine(f"{said}; what is deleted is gone (soft_delete_days = 7 in hvdcloud.tfvars, then hvdcloud setup)")


def storage(login: Login) -> Any:
    """As hvdcloud/checkpoints opens it: another endpoint is used without credentials."""
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    if endpoint:
        from google.auth.credentials import AnonymousCredentials

        login = replace(login, credentials=AnonymousCredentials())
    return login.api("storage", _BASE_PATH, endpoint=endpoint or "https://storage.googleapis.com")
