"""Google credentials: where they come from, and what to type if they will not do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hvdcloud.errors import CredentialsError, UsageError

KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def default_file() -> Path:
    """The file with this machine's Application Default Credentials; it may not exist."""
    if named := os.environ.get(KEY_VARIABLE):
        return Path(named)
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    return Path(folder) / "application_default_credentials.json"


def login_hint() -> str:
    """How to get other Application Default Credentials. Where a key is named, those of `gcloud auth` do not count.

    https://cloud.google.com/docs/authentication/application-default-credentials#order
    """
    if KEY_VARIABLE in os.environ:
        return f"name another key in {KEY_VARIABLE}, or unset it and gcloud auth application-default login"
    return "gcloud auth application-default login"


def google_credentials(project: str | None) -> tuple[Any, str]:
    """This machine's Application Default Credentials, and the project to work in.

    Args:
        project: None: the credentials' own.

    Raises:
        CredentialsError: there are none, or they cannot be read.
        UsageError: neither the configuration nor the credentials name a project.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials, default_project = google.auth.default(scopes=[SCOPE])
    except (GoogleAuthError, ValueError) as error:
        # Google's own words for that are an address to read.
        missing = KEY_VARIABLE not in os.environ and not default_file().exists()
        why = "" if missing else f": {str(error).partition('. ')[0].rstrip('.')}"
        usable = "" if missing else "usable "
        raise CredentialsError(f"there are no {usable}Google credentials{why}", hint=login_hint()) from None
    chosen = project or default_project
    if not chosen:
        raise UsageError(
            "no project is named, neither in gce.project nor by the credentials",
            hint="set gce.project in hvdcloud.yaml, or run gcloud config set project PROJECT",
        )
    return credentials, chosen
