"""Google's storage client, with the credentials that a bucket is opened with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hvdcloud.errors import CredentialsError
from hvdcloud.storage.gcs_errors import in_short, unreachable
from hvdcloud.storage.token_file import token_expiry


def make_client(*, endpoint: str | None, credentials_file: Path | None) -> Any:
    """Google's client; arguments as of `open_bucket`. Raises CredentialsError: no credentials, or not readable."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.cloud.storage import Client

    # For its traces, which nothing collects here, the library asks for the bucket itself in the background: requests of
    # their own, and the permission for them (storage.buckets.get) is more than roles/storage.objectUser has.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    options = {"api_endpoint": endpoint.rstrip("/")} if endpoint else None
    try:
        if credentials_file is not None:
            credentials, project = _credentials(credentials_file)
            return Client(project=project or "none", credentials=credentials, client_options=options)
        if endpoint:
            return Client(project="none", credentials=AnonymousCredentials(), client_options=options)
        return Client(client_options=options)
    except (GoogleAuthError, OSError, ValueError) as error:
        if isinstance(error, TransportError):  # Some credentials are asked for their project.
            raise unreachable("no Google credentials", error) from error
        why = in_short(error).partition(". ")[0].rstrip(".")
        hint = "gcloud auth application-default login"
        raise CredentialsError(f"no usable Google credentials: {why}", hint=hint) from error


def _credentials(file: Path) -> tuple[Any, str | None]:
    """The credentials in a file, and their project if the file names one."""
    import google.auth
    from google.auth import compute_engine
    from google.auth.credentials import DEFAULT_UNIVERSE_DOMAIN

    if holds_token(file):
        from hvdcloud.storage.token_credentials import TokenCredentials

        return TokenCredentials(file), None
    if json.loads(file.read_bytes()) == {"type": "metadata"}:
        # Named, the universe is not asked for: nothing should be asked before the first request.
        return compute_engine.Credentials(universe_domain=DEFAULT_UNIVERSE_DOMAIN), None
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    found: tuple[Any, str | None] = google.auth.load_credentials_from_file(str(file), scopes=[scope])
    return found


def holds_token(file: Path) -> bool:
    """Whether these credentials are a token that ends, and is followed by another."""
    return token_expiry(json.loads(file.read_bytes())) is not None
