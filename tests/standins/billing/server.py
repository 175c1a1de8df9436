"""The Cloud Billing Catalog: pages of entries, for any caller with a token."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from tests.standins.api_errors import body_of, invalid, not_found, not_implemented
from tests.standins.billing.skus import COMPUTE, catalog_skus
from tests.standins.compute.auth import Keys
from tests.standins.compute.errors import ApiError, CutError
from tests.standins.compute.faults import Faults, error_of
from tests.standins.discovery import Discovery, load
from tests.support.http_server import Asked, Reply

METHOD = "cloudbilling.services.skus.list"
MOST = 5000


@functools.cache
def discovery() -> Discovery:
    """Cloud Billing v1 as google-api-python-client carries it."""
    return load("cloudbilling.v1", refuse=lambda _, message: invalid(message))


class Catalog:
    """The API.

    Args:
        keys: whose tokens count.

    Attributes:
        skus: the entries of Compute Engine; a test may change them.
        page_size: most entries of a page, regardless of the request.
        asked: query and headers of every request.
    """

    def __init__(self, *, keys: Keys) -> None:
        self.skus = catalog_skus()
        self.keys = keys
        self.page_size = MOST
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
        self.keys.check(asked.headers.get("Authorization"))
        fault = self.faults.of_request(method.id, zone=None, instance=None, part=False)
        if "reset" in fault:
            raise CutError
        if "status" in fault:
            raise error_of(fault)
        if method.id != METHOD:
            raise not_implemented(method.id)
        value = self._page(path["parent"].partition("/")[2], query)
        assert method.response is not None
        api.response(method.response, value)
        return value

    def _page(self, service: str, query: Mapping[str, Any]) -> dict[str, Any]:
        if service != COMPUTE:
            raise not_found()
        if not 0 <= query.get("pageSize", 0) <= MOST:
            raise invalid(f"The page size must be between 0 and {MOST}.")
        start = int(query.get("pageToken") or 0)
        end = start + min(query.get("pageSize") or MOST, self.page_size)
        more = end < len(self.skus)
        return {"skus": self.skus[start:end], "nextPageToken": str(end) if more else ""}
