"""Google credentials: where they come from, and what to type if they will not do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hvdcloud.errors import CredentialsError, HvdcloudError, NodeError, UsageError

KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
NETWORK_HINT = "check this machine's network and proxy, then run the command again"
TOKEN_SECONDS = 20.0
"""For which Google may be silent when it is asked for a token; google.auth's own default is 120."""
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


def credentials_error(error: Exception, *, what: str) -> HvdcloudError:
    """Why google.auth gives no credentials or no token: because of the network, or of the credentials.

    Args:
        what: there is none of: "there are no usable Google credentials".
    """
    from google.auth.exceptions import GoogleAuthError, TransportError

    causes = [each for each in (error, error.__cause__) if isinstance(each, GoogleAuthError)]
    if away := next((each for each in causes if isinstance(each, TransportError) or each.retryable), None):
        return NodeError(f"{what}: Google cannot be reached: {innermost(away)}", hint=NETWORK_HINT)
    said = ": ".join(str(each).splitlines()[0].rstrip(".") for each in error.args if str(each)) or type(error).__name__
    file = default_file()
    where = f" ({file})" if str(file) not in said and (KEY_VARIABLE in os.environ or file.exists()) else ""
    return CredentialsError(f"{what}: {said}{where}", hint=login_hint())


def innermost(error: Exception) -> str:
    """The innermost words of nested connection errors: `Connection refused`, not the objects around it."""
    text = str(error.args[0] if error.args else error).rpartition("Caused by ")[2]
    match = re.search(r"(?:\[Errno -?\d+\] |: )(\w[\w ]+)['\")]*$", text)
    return match.group(1) if match else re.sub(r"<[^>]*>(: |, )?", "", text)


def google_credentials(project: str | None) -> tuple[Any, str]:
    """This machine's Application Default Credentials, and the project to work in.

    Args:
        project: None: the credentials' own.

    Raises:
        CredentialsError: there are none, or they cannot be read.
        NodeError: Google, which they have to ask, cannot be reached.
        UsageError: neither the configuration nor the credentials name a project.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials, default_project = google.auth.default(scopes=[SCOPE])
    except (GoogleAuthError, ValueError) as error:
        if KEY_VARIABLE not in os.environ and not default_file().exists():
            # Google's own words for that are an address to read.
            raise CredentialsError("there are no Google credentials", hint=login_hint()) from None
        raise credentials_error(error, what="there are no usable Google credentials") from None
    chosen = project or default_project
    if not chosen:
        raise UsageError(
            "no project is named, neither in gce.project nor by the credentials",
            hint="set gce.project in hvdcloud.yaml, or run gcloud config set project PROJECT",
        )
    return credentials, chosen
