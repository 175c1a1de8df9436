"""What the errors of Google's storage library mean to the user."""

from __future__ import annotations

from pathlib import Path

from hvdcloud.errors import CheckpointError, CredentialsError, HvdcloudError
from hvdcloud.storage.base import (
    BucketUnreachableError,
    CorruptObjectError,
    ObjectMissingError,
    PreconditionError,
    disk_error,
)


def explain(error: BaseException, *, doing: str, url: str) -> Exception:
    """What an error of the library means to the user.

    Args:
        doing: what failed, such as `reading NAME`.
        url: the bucket's.
    """
    import requests
    import urllib3
    from google.api_core.exceptions import RetryError
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.cloud.storage.exceptions import DataCorruption

    if isinstance(error, HvdcloudError):
        return error
    if isinstance(error, RetryError) and error.cause is not None:
        error = error.cause
    what = f"{doing} in {url}"
    code = http_status(error)
    if isinstance(error, DataCorruption):
        return CorruptObjectError(
            f"{what} failed: the bytes don't match the object's own checksum",
            hint="the object is damaged in the bucket; take an earlier checkpoint",
        )
    if code == 404:
        return ObjectMissingError(f"{what} failed: there is no such object", hint="hvdcloud pull")
    if code == 412:
        return PreconditionError(f"{what} failed: another process wrote it", hint="hvdcloud status shows the cluster")
    network = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TransportError)
    # A metadata server that does not answer looks like wrong credentials; its answers come as a second argument.
    away = isinstance(error.__cause__, TransportError) and len(error.__cause__.args) == 1
    if away or code in (408, 429) or (code is not None and code >= 500) or isinstance(error, network):
        return unreachable(f"{what} failed, also when tried again", error)
    if code in (401, 403) or isinstance(error, GoogleAuthError):
        return CredentialsError(
            f"{what} was refused: {in_short(error)}",
            hint="gcloud auth application-default login, and the role roles/storage.objectUser on the bucket; "
            "hvdcloud setup gives nodes theirs",
        )
    if isinstance(error, OSError):
        return disk_error(error, path=Path(error.filename or "."), doing="writing")
    return CheckpointError(f"{what} failed: {in_short(error)}", hint="type the command again with --verbose")


def unreachable(what: str, error: BaseException) -> BucketUnreachableError:
    """The error for a network that does not bring an answer."""
    hint = "check the network and type the command again: what was sent is not sent again"
    return BucketUnreachableError(f"{what}: {in_short(error)}", hint=hint)


def http_status(error: BaseException) -> int | None:
    """The HTTP status, for all of the library's exceptions."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return int(code)
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def in_short(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
