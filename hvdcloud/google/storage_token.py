"""A storage token for nodes that have no identity of their own: of this machine's user, but for one run's folder only.

Google's Security Token Service exchanges an access token for one with a Credential Access Boundary:
https://cloud.google.com/iam/docs/downscoping-short-lived-credentials
What the user logged in with stays here. The token ends with the access token that it was exchanged for: within an hour.
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


def boundary(bucket: str, *, writes: str, reads: Sequence[str] = ()) -> Any:
    """What a token may do at most, as google-auth has it.

    Args:
        bucket: gs://BUCKET[/PREFIX].
        writes: the run's folder below it, ending in "/", in which objects are read and made. What describes the run
            (checkpoints/manifest.py) is replaced too.
        reads: those in which they are read only.
    """
    from google.auth.downscoped import AccessBoundaryRule, AvailabilityCondition, CredentialAccessBoundary

    name, _, prefix = bucket.removeprefix("gs://").partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    rules = []
    own = (((CREATOR, READER), writes), ((WRITER,), f"{writes}.hvdcloud/"))
    for roles, folder in [*own, *(((READER,), folder) for folder in reads)]:
        below = _quoted(f"projects/_/buckets/{name}/objects/{prefix}{folder}")
        # Where objects are listed, the resource is the bucket, and the folder is what the request asks for.
        listed = (
            f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith({_quoted(prefix + folder)})'
        )
        rule = AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{name}",
            available_permissions=[f"inRole:{role}" for role in roles],
            availability_condition=AvailabilityCondition(f"resource.name.startsWith({below}) || {listed}"),
        )
        rules.append(rule)
    return CredentialAccessBoundary(rules=rules)


def _quoted(text: str) -> str:
    """A string of the Common Expression Language."""
    return json.dumps(text, ensure_ascii=False)


def storage_token(bucket: str, *, writes: str, reads: Sequence[str] = ()) -> str:
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
            additional_options=boundary(bucket, writes=writes, reads=reads).to_json(),
        )
        token, seconds = str(answer["access_token"]), answer.get("expires_in")
    except (GoogleAuthError, KeyError, ValueError) as error:
        why = str(error.args[0] if error.args else error).partition("\n")[0][:300]
        raise CredentialsError(f"no storage token for {bucket}: {why}", hint=login_hint()) from error
    # Google may leave it out: the token then ends with the one that it was exchanged for.
    expiry = time.time() + float(seconds) if seconds else own.expiry.replace(tzinfo=timezone.utc).timestamp()
    return token_text(token, expiry=expiry)
