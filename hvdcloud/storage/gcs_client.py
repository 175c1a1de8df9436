"""Google's storage client, with the credentials that a bucket is opened with."""

from __future__ import annotations

import os
from typing import Any

from hvdcloud.errors import CredentialsError
from hvdcloud.storage.gcs_errors import in_short, unreachable


def make_client(*, endpoint: str | None, credentials: Any = None) -> Any:
    """Google's client; arguments as of `open_bucket`. Raises CredentialsError: no credentials, or not readable."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.cloud.storage import Client

    # For its traces, which nothing collects here, the library asks for the bucket itself in the background: requests of
    # their own, and the permission for them (storage.buckets.get) is more than roles/storage.objectUser has.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    options = {"api_endpoint": endpoint.rstrip("/")} if endpoint else None
    try:
        # Which project the credentials are of does not matter: a bucket's name is enough.
        own = credentials or (AnonymousCredentials() if endpoint else None)
        return Client(project="none", credentials=own, client_options=options)
    except (GoogleAuthError, OSError, ValueError) as error:
        if isinstance(error, TransportError):  # Some credentials are asked for their project.
            raise unreachable("no Google credentials", error) from error
        why = in_short(error).partition(". ")[0].rstrip(".")
        hint = "gcloud auth application-default login"
        raise CredentialsError(f"no usable Google credentials: {why}", hint=hint) from error


def vm_credentials() -> Any:
    """Those of the service account of the VM that this runs on; nothing is asked before the first request."""
    from google.auth import compute_engine
    from google.auth.credentials import DEFAULT_UNIVERSE_DOMAIN

    # Named, the universe is not asked for.
    return compute_engine.Credentials(universe_domain=DEFAULT_UNIVERSE_DOMAIN)
