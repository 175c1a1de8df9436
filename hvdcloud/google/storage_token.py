"""A storage token for nodes that have no identity of their own: of this machine's user, but for one run only.

Google's Security Token Service exchanges an access token for one with a Credential Access Boundary:
https://cloud.google.com/iam/docs/downscoping-short-lived-credentials
It is good for the run's folder in the bucket, and for reading its data. What the user logged in with stays here. The
token ends with the access token that it was exchanged for: within an hour.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import timezone
from typing import Any

from hvdcloud.errors import CredentialsError
from hvdcloud.google.credentials import google_credentials, login_hint
from hvdcloud.storage.token_file import token_text

ENDPOINT_VARIABLE = "HVDCLOUD_STS_ENDPOINT"
"""Another token service than Google's; only the environment names one, never a project's file."""
GOOGLE_ENDPOINT = "https://sts.googleapis.com/v1/token"
CREATOR, READER = "roles/storage.objectCreator", "roles/storage.objectViewer"
WRITER = "roles/storage.objectUser"
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


def boundary(bucket: str | None, *, writes: str, reads: Sequence[str] = (), data: Sequence[str] = ()) -> Any:
    """What a token may do at most, as google-auth has it.

    Args:
        bucket: gs://BUCKET[/PREFIX]; None: the checkpoints are elsewhere, and the token is for data alone.
        writes: the run's folder below it, ending in "/", in which objects are read and made. What describes the run
            (checkpoints/manifest.py) is replaced too.
        reads: those in which they are read only.
        data: gs://BUCKET[/PREFIX] of data sets, which are read only.
    """
    from google.auth.downscoped import AccessBoundaryRule, AvailabilityCondition, CredentialAccessBoundary

    granted: list[tuple[str, Sequence[str], list[str]]] = []
    if bucket is not None:
        name, prefix = _parts(bucket)
        own = (((CREATOR, READER), writes), ((WRITER,), f"{writes}.hvdcloud/"))
        granted += [
            (name, roles, [prefix + folder]) for roles, folder in [*own, *(((READER,), folder) for folder in reads)]
        ]
    of_data: dict[str, list[str]] = {}
    for source in data:
        name, prefix = _parts(source)
        of_data.setdefault(name, []).append(prefix)
    # One for each bucket: a boundary has ten rules at most.
    granted += [(name, (READER,), folders) for name, folders in of_data.items()]
    rules = [
        AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{name}",
            available_permissions=[f"inRole:{role}" for role in roles],
            # Of a whole bucket, nothing is left to condition.
            availability_condition=AvailabilityCondition(_condition(name, folders)) if all(folders) else None,
        )
        for name, roles, folders in granted
    ]
    return CredentialAccessBoundary(rules=rules)


def _parts(bucket: str) -> tuple[str, str]:
    """Its name, and the folder in it: empty or ending in "/"."""
    name, _, prefix = bucket.removeprefix("gs://").partition("/")
    return name, f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def _condition(bucket: str, folders: Sequence[str]) -> str:
    """That what is asked for is in one of the folders of a bucket."""
    terms = []
    for folder in folders:
        below = _quoted(f"projects/_/buckets/{bucket}/objects/{folder}")
        # Where objects are listed, the resource is the bucket, and the folder is what the request asks for.
        listed = f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith({_quoted(folder)})'
        terms.append(f"resource.name.startsWith({below}) || {listed}")
    return " || ".join(terms)


def _quoted(text: str) -> str:
    """A string of the Common Expression Language."""
    return json.dumps(text, ensure_ascii=False)


def storage_token(bucket: str | None, *, writes: str, reads: Sequence[str] = (), data: Sequence[str] = ()) -> str:
    """A new token, as nodes keep it (storage/token_file.py); arguments as for `boundary`.

    Raises:
        CredentialsError: this machine has no credentials, or they are refused.
    """
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request
    from google.oauth2 import sts

    own, _ = google_credentials("any")
    endpoint = os.environ.get(ENDPOINT_VARIABLE) or GOOGLE_ENDPOINT
    try:
        request = Request()
        own.refresh(request)
        answer = sts.Client(endpoint).exchange_token(
            request=request,
            grant_type=_GRANT,
            subject_token=own.token,
            subject_token_type=_ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN,
            additional_options=boundary(bucket, writes=writes, reads=reads, data=data).to_json(),
        )
        token, seconds = str(answer["access_token"]), answer.get("expires_in")
    except (GoogleAuthError, KeyError, ValueError) as error:
        why = str(error.args[0] if error.args else error).partition("\n")[0][:300]
        raise CredentialsError(f"no storage token for {bucket or data[0]}: {why}", hint=login_hint()) from error
    # Google may leave it out: the token then ends with the one that it was exchanged for.
    expiry = time.time() + float(seconds) if seconds else own.expiry.replace(tzinfo=timezone.utc).timestamp()
    return token_text(token, expiry=expiry)
