"""What is checked of the account."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Finding, Once, fine, setup_hint, warning
from hvdcloud.google.credentials import TOKEN_SECONDS, google_credentials
from hvdcloud.google.errors import explained
from hvdcloud.google.http import api_errors
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.places import check_account
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings

if TYPE_CHECKING:
    from hvdcloud.config.gce import GceConfig

RETRY_SECONDS = 5.0
"""A service that fails for longer than that is worth knowing of; `up` is more patient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The account and the project."""

    credentials: Any = field(repr=False)
    project: str

    def client(self) -> ComputeClient:
        """The Compute API as the provider uses it."""
        return ComputeClient(project=self.project, credentials=self.credentials, retry_seconds=RETRY_SECONDS)


def log_in(config: GceConfig) -> Login:
    """This machine's account and the project. Raises CredentialsError: no credentials; UsageError: no project."""
    credentials, project = google_credentials(config.project)
    return Login(credentials=credentials, project=project)


def check_credentials(login: Once[Login]) -> Finding:
    """Whether there are any, and whether Google still gives a token for them."""
    from google.auth.transport.requests import Request

    me = login()
    with explained("get a token for the Google credentials"), api_errors(me.project, service="token"):
        me.credentials.refresh(partial(Request(), timeout=TOKEN_SECONDS))
    who = getattr(me.credentials, "service_account_email", "") or getattr(me.credentials, "account", "")
    return fine(f"{who or 'a Google account'} in project {me.project}")


def check_service_account(settings: Settings) -> Finding:
    """Which account nodes run as. Raises UsageError: none is named."""
    check_account(settings)
    if settings.service_account == DEFAULT_ACCOUNT:
        said = "which the organization may allow more than nodes need, or nothing at all"
        return warning(f"nodes run as the project's default service account, {said}", hint=setup_hint())
    return fine(f"nodes run as {settings.service_account}")
