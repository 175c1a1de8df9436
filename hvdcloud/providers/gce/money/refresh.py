"""Which price table is used, and how a new one comes from the Cloud Billing Catalog."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CredentialsError, HvdcloudError, UsageError
from hvdcloud.google.credentials import google_credentials, login_hint
from hvdcloud.google.errors import ApiError
from hvdcloud.providers.gce.money import billing, price_table
from hvdcloud.providers.pricing import Change, PricesResult, RefreshResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from hvdcloud.google.http import Transport

KEY_VARIABLE = "GOOGLE_API_KEY"
_KEY_PAGE = "https://console.cloud.google.com/apis/credentials"


def show() -> PricesResult:
    """The table that is used."""
    chosen = price_table.chosen()
    table = chosen.table
    return PricesResult(
        as_of=table.as_of,
        source=chosen.path,
        region=table.region,
        regions=tuple(sorted(table.regions)),
        kept=tuple(table.kept),
        notices=chosen.notices,
        skus=table.skus,
    )


def refresh(
    *, project: str | None, endpoint: str | None, api_key: str | None, on_progress: Callable[[str], None]
) -> RefreshResult:
    """Read the whole catalog, then replace the refreshed table in one move. A failure before that changes nothing.

    Args:
        project: whose quota is used; None: the credentials' own.
        endpoint: of the API; None: Google's.
        api_key: instead of this machine's credentials. Where those are missing, GOOGLE_API_KEY is taken.
        on_progress: called with a line for people.

    Raises CredentialsError: there are none, or they are refused. NodeError: the API cannot be reached, or its answer
    cannot be right. UsageError, CapacityError: the table cannot be written.
    """
    before = price_table.chosen().table
    transport, with_key = _connect(project=project, endpoint=endpoint, api_key=api_key)
    transport.on_retry = on_progress
    reading = billing.Reading()
    try:
        for name, service in billing.SERVICES.items():
            parameters = {"currencyCode": "USD", "pageSize": billing.PAGE_SIZE}
            for page in transport.pages(f"services/{service}/skus", parameters):
                reading.add(page.get("skus", ()))
                on_progress(f"{name}: {reading.skus} prices read")
    except ApiError as error:
        raise _explained(error, with_key=with_key) from error
    today = datetime.now(timezone.utc).date()
    table = billing.table_of(reading, before=before, shipped=price_table.shipped(), today=today)
    price_table.save(table)
    changes, elsewhere = billing.compare(before, table)
    return RefreshResult(
        prices=show(),
        changes=tuple(Change(what=what, before=was, after=now) for what, was, now in changes),
        changes_elsewhere=elsewhere,
        differing=tuple(
            f"{component} {'for Spot' if spot else 'on demand'} in {region}"
            for component, spot, region in sorted(reading.differing)
        ),
    )


def _explained(error: ApiError, *, with_key: bool) -> HvdcloudError:
    if with_key and error.status in (400, 401, 403):
        return CredentialsError(
            f"the Cloud Billing API refuses the API key: {error.cause}",
            hint=f"{_KEY_PAGE} shows your keys and what they are for; without one, {login_hint()}",
        )
    return error.as_user_error(doing="read the price catalog")


def _connect(*, project: str | None, endpoint: str | None, api_key: str | None) -> tuple[Transport, bool]:
    """The API, and whether a key opens it."""
    from google.auth import api_key as keys

    from hvdcloud.google.http import Transport

    named, key = ("--api-key", api_key) if api_key is not None else (KEY_VARIABLE, os.environ.get(KEY_VARIABLE))
    credentials, chosen = None, project or ""
    if api_key is None:
        # These come first: people have the variable set for keys of quite other APIs.
        try:
            credentials, chosen = _own_credentials(project)
        except CredentialsError as error:
            if not key:
                hint = f"{error.hint}; or name an API key in {KEY_VARIABLE}"
                raise CredentialsError(error.message, hint=hint) from None
    with_key = credentials is None
    # A key goes into a header, so that no address that is logged or quoted has it.
    credentials = credentials or keys.Credentials(_checked(key or "", named))
    return Transport(
        project=chosen, credentials=credentials, endpoint=endpoint, service="cloudbilling", base_path="/v1/"
    ), with_key


def _own_credentials(project: str | None) -> tuple[Any, str]:
    from google.oauth2.credentials import Credentials

    credentials, chosen = google_credentials(project)
    if isinstance(credentials, Credentials) and not credentials.quota_project_id:
        # A person's calls of this API count against a project, which has to be named:
        # https://cloud.google.com/docs/authentication/troubleshoot-adc#user-creds-client-based
        credentials = credentials.with_quota_project(chosen)
    return credentials, chosen


def _checked(key: str, named: str) -> str:
    """A text that is not a key never reaches an HTTP library, whose message would quote it."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", key.strip()):
        message = f"{named} is not an API key: it is empty or has characters that keys do not have"
        raise UsageError(message, hint=f"{_KEY_PAGE} shows your keys")
    return key.strip()
