"""The server: pages of entries, for any caller with a token or a key.

`Catalog.answer` is only the API, `/v1/services/…`, so that another server can have it among its own paths.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.standins.billing.skus import catalog_skus
from tests.standins.cloudbuild.errors import body_of, invalid, not_found, not_implemented
from tests.standins.compute.auth import Keys, TokenError
from tests.standins.compute.errors import ApiError, CutError
from tests.standins.compute.faults import Faults, error_of
from tests.standins.discovery import Discovery, SchemaError, load
from tests.support.http_server import Asked, Reply, answering

PERSON = "ada@example.com"
METHOD = "cloudbilling.services.skus.list"
MOST = 5000
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


@functools.cache
def discovery() -> Discovery:
    """Cloud Billing v1 as google-api-python-client carries it."""
    return load("cloudbilling.v1", refuse=lambda _, message: invalid(message))


class Catalog:
    """The API.

    Args:
        keys: whose tokens count.
        api_keys: that count as well.
        page_size: most entries of a page, regardless of the request.

    Attributes:
        skus: service → its entries; a test may change them.
        asked: query and headers of every request.
    """

    def __init__(self, *, keys: Keys, api_keys: Sequence[str] = (), page_size: int = MOST) -> None:
        self.skus = catalog_skus()
        self.keys = keys
        self.api_keys = set(api_keys)
        self.page_size = page_size
        self.faults = Faults()
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def answer(self, asked: Asked) -> Reply | None:
        """A request of the API; None: the connection is cut."""
        self.asked.append((asked.query, {name.lower(): value for name, value in asked.headers.items()}))
        try:
            return Reply(self._value(asked))
        except ApiError as error:
            return Reply(body_of(error), status=error.status, headers={"Content-Type": "application/json"})
        except CutError:
            return None

    def _value(self, asked: Asked) -> dict[str, Any]:
        api = discovery()
        found = api.find(asked.method, asked.path.removeprefix(api.base).split("/"))
        if found is None:
            raise not_found()
        method, path = found
        query = api.check_parameters(method, path, parse_qs(asked.query, keep_blank_values=True))
        self._check_caller(asked, query)
        fault = self.faults.of_request(method.id, zone=None, instance=None, part=False)
        if "reset" in fault:
            raise CutError
        if "status" in fault:
            raise error_of(fault)
        if method.id != METHOD:
            raise not_implemented(method.id)
        value = self._page(path["parent"].partition("/")[2], query)
        try:
            assert method.response is not None
            api.response(method.response, value)
        except SchemaError as error:
            raise ApiError(500, "INTERNAL", f"{method.id} would answer what its schema forbids: {error}") from error
        return value

    def _page(self, service: str, query: Mapping[str, Any]) -> dict[str, Any]:
        if service not in self.skus:
            raise not_found()
        if not 0 <= query.get("pageSize", 0) <= MOST:
            raise invalid(f"The page size must be between 0 and {MOST}.")
        start = 0
        if token := query.get("pageToken"):
            owner, _, number = token.partition("/")
            if owner != service or not number.isdigit():
                raise invalid("Invalid page token.")
            start = int(number)
        end = start + min(query.get("pageSize") or MOST, self.page_size)
        more = end < len(self.skus[service])
        return {"skus": self.skus[service][start:end], "nextPageToken": f"{service}/{end}" if more else ""}

    def _check_caller(self, asked: Asked, query: Mapping[str, Any]) -> None:
        key = asked.headers.get("X-Goog-Api-Key") or query.get("key")
        if key is not None:
            if key not in self.api_keys:
                info = {"@type": ERROR_INFO, "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
                message = "API key not valid. Please pass a valid API key."
                raise ApiError(400, "INVALID_ARGUMENT", message, details=[info])
            return
        email = self.keys.check(asked.headers.get("Authorization"))
        if email == PERSON and not asked.headers.get("X-Goog-User-Project"):
            info = {"@type": ERROR_INFO, "reason": "SERVICE_DISABLED", "domain": "googleapis.com"}
            message = "The cloudbilling.googleapis.com API requires a quota project, which is not set by default."
            raise ApiError(403, "PERMISSION_DENIED", message, details=[info])


class BillingServer:
    """The catalog on a port of its own; use it as a context manager. Arguments as for `Catalog`."""

    def __init__(self, **options: Any) -> None:
        self.keys = Keys(project="test-project")
        self.catalog = Catalog(keys=self.keys, **options)
        self.url = ""
        self._stack = ExitStack()

    def __enter__(self) -> BillingServer:
        self.url = self._stack.enter_context(answering(self._answer))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def service_account(self, path: Path) -> Path:
        """Write a service account's key there, for GOOGLE_APPLICATION_CREDENTIALS."""
        path.write_text(json.dumps(self.keys.credentials(self.url)))
        return path

    def person(self, path: Path) -> Path:
        """Write what `gcloud auth application-default login` leaves, without a quota project."""
        # gcloud's own client, which google-auth knows.
        client = "764086051850-6qr4p6gpi6hn506pt8ejuq83di341hur.apps.googleusercontent.com"
        own = {"type": "authorized_user", "client_id": client, "client_secret": "s", "refresh_token": "r"}
        # With a token that is good still: google-auth lets no file say where another one is available.
        token = {"token": self.keys.issue(PERSON)[0], "expiry": "2099-01-01T00:00:00Z"}
        path.write_text(json.dumps({**own, **token}))
        return path

    def _answer(self, asked: Asked) -> Reply | None:
        if asked.path != "/token":
            return self.catalog.answer(asked)
        try:
            return Reply(self.keys.exchange(asked.body, token_uri=f"{self.url}/token"))
        except TokenError as error:
            return Reply(error.document, status=400)
