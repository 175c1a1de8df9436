"""`hvdcloud prices`: which price table is used, and a new one from the Cloud Billing Catalog."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CredentialsError, HvdcloudError, UsageError
from hvdcloud.google.credentials import google_credentials, login_hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from hvdcloud.google.errors import ApiError
    from hvdcloud.google.http import Transport
    from hvdcloud.providers.gce.money.billing import Reading
    from hvdcloud.providers.gce.money.price_table import Chosen, Table

KEY_VARIABLE = "GOOGLE_API_KEY"
_KEY_PAGE = "https://console.cloud.google.com/apis/credentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that costs something else than before."""

    what: str
    before: float
    """Dollars: an hour, or a GB for a month where the name says so."""
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesResult:
    """The table that is used."""

    as_of: date
    source: Path | None
    """Where it is; None: it came with hvdcloud."""
    region: str
    """Whose figures stand for those of regions that are not in it."""
    regions: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """What the catalog did not have when it was made, so that older figures stand."""
    notices: tuple[str, ...] = ()
    skus: int = 0
    """Entries of the catalog that it was made from; 0: it was put together by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshResult:
    """A new table."""

    prices: PricesResult
    changes: tuple[Change, ...]
    """In the table's main region."""
    changes_elsewhere: int
    """Figures of other regions that both tables have."""
    differing: tuple[str, ...]
    """What the catalog has at two prices; the higher one counts."""


def show() -> PricesResult:
    """The table that is used."""
    from hvdcloud.providers.gce.money import price_table

    return _described(price_table.chosen())


def refresh(
    *, project: str | None, endpoint: str | None, api_key: str | None, say: Callable[[str], None]
) -> RefreshResult:
    """Read the whole catalog, then replace the refreshed table in one move. Whatever goes wrong before changes nothing.

    Args:
        project: whose quota is used; None: the credentials' own.
        endpoint: of the API; None: Google's.
        api_key: instead of this machine's credentials. Where those are missing, GOOGLE_API_KEY is taken.
        say: hears how far it is.

    Raises:
        CredentialsError: there are none, or they are refused.
        NodeError: the API cannot be reached, or its answer cannot be right.
        UsageError, CapacityError: the table cannot be written.
    """
    from hvdcloud.google.errors import ApiError
    from hvdcloud.providers.gce.money import billing, price_table

    before = price_table.chosen().table
    transport, with_key = _connect(project=project, endpoint=endpoint, api_key=api_key)
    transport.on_retry = say
    reading = billing.Reading()
    try:
        for name, service in billing.SERVICES.items():
            _read(transport, reading, name=name, service=service, say=say)
    except ApiError as error:
        raise _explained(error, with_key=with_key) from error
    today = datetime.now(timezone.utc).date()
    table = billing.table_of(reading, before=before, shipped=price_table.shipped(), today=today)
    price_table.save(table)
    changes, elsewhere = billing.compare(before, table)
    return RefreshResult(
        prices=_described(price_table.chosen()),
        changes=tuple(Change(what=what, before=was, after=now) for what, was, now in changes),
        changes_elsewhere=elsewhere,
        differing=tuple(
            f"{component} {'for Spot' if spot else 'on demand'} in {region}"
            for component, spot, region in sorted(reading.differing)
        ),
    )


def _read(transport: Transport, reading: Reading, *, name: str, service: str, say: Callable[[str], None]) -> None:
    from hvdcloud.providers.gce.money import billing

    parameters = {"currencyCode": "USD", "pageSize": billing.PAGE_SIZE}
    for page in transport.pages(f"services/{service}/skus", parameters):
        reading.add(page.get("skus", ()))
        say(f"{name}: {reading.skus} prices read")


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
    if credentials is None:
        # Goes into a header, so that no address that is logged or quoted has it.
        credentials = keys.Credentials(_checked(key or "", named))
        with_key = True
    else:
        with_key = False
    return Transport(
        project=chosen, credentials=credentials, endpoint=endpoint, service="cloudbilling", base_path="/v1/"
    ), with_key


def _own_credentials(project: str | None) -> tuple[Any, str]:
    from google.oauth2.credentials import Credentials

    credentials, chosen = google_credentials(project)
    if isinstance(credentials, Credentials) and not credentials.quota_project_id:
        # A person's calls of this API count against a project, which has to be told:
        # https://cloud.google.com/docs/authentication/troubleshoot-adc#user-creds-client-based
        credentials = credentials.with_quota_project(chosen)
    return credentials, chosen


def _checked(key: str, named: str) -> str:
    """What is no key never gets as far as an HTTP library, whose message would quote it."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", key.strip()):
        message = f"{named} is no API key: it is empty or has characters that keys do not have"
        raise UsageError(message, hint=f"{_KEY_PAGE} shows your keys")
    return key.strip()


def _described(chosen: Chosen) -> PricesResult:
    table: Table = chosen.table
    return PricesResult(
        as_of=table.as_of,
        source=chosen.path,
        region=table.region,
        regions=tuple(sorted(table.regions)),
        kept=tuple(table.kept),
        notices=chosen.notices,
        skus=table.skus,
    )
