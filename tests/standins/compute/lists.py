"""Answers of list methods: filters, order and pages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tests.standins.compute.errors import invalid_field, not_implemented
from tests.standins.compute.filters import compile_filter

Item = Mapping[str, Any]
HOST = "https://www.googleapis.com/compute/v1"


class Page:
    """What a request for a list asks for.

    Args:
        query: the typed query.
        schema: of one item.
    """

    def __init__(self, query: Mapping[str, Any], *, schema: str) -> None:
        self._accepts = compile_filter(query.get("filter"), schema=schema)
        self._size = query.get("maxResults") or 500
        if query.get("orderBy", "name") != "name":
            raise not_implemented(f"orderBy={query['orderBy']}")
        # A token is of one query: with another one it means nothing.
        same = json.dumps([schema, query.get("filter")])
        self._signature = hashlib.sha256(same.encode()).hexdigest()[:12]
        self._start = self._read(query["pageToken"]) if query.get("pageToken") else None
        self.next: str | None = None

    def take(self, items: Iterable[tuple[str, Item]]) -> list[tuple[str, Item]]:
        """The page's items of these (scope, item); sets `next`."""
        chosen = sorted(
            (([scope, item["name"]], scope, item) for scope, item in items if self._accepts(item)),
            key=lambda one: one[0],
        )
        if self._start is not None:
            chosen = [one for one in chosen if one[0] > self._start]
        page = chosen[: self._size]
        if len(chosen) > len(page):
            self.next = self._write(page[-1][0])
        return [(scope, item) for _, scope, item in page]

    def _write(self, key: list[str]) -> str:
        return base64.urlsafe_b64encode(json.dumps([self._signature, key]).encode()).decode()

    def _read(self, token: str) -> list[str]:
        try:
            signature, key = json.loads(base64.urlsafe_b64decode(token))
        except (binascii.Error, ValueError):
            raise invalid_field("pageToken", token) from None
        if signature != self._signature:
            raise invalid_field("pageToken", token, "The token is of another request.")
        return list(key)


def plain(page: Page, items: Iterable[Item], *, kind: str, path: str) -> dict[str, Any]:
    """The answer of `list`."""
    answer: dict[str, Any] = {"kind": kind, "id": path, "selfLink": f"{HOST}/{path}"}
    found = [item for _, item in page.take(("", item) for item in items)]
    if found:
        answer["items"] = found
    if page.next:
        answer["nextPageToken"] = page.next
    return answer


def aggregated(
    page: Page,
    items: Iterable[tuple[str, Item]],
    *,
    schema: str,
    path: str,
    scopes: Sequence[str],
    unreachable: Mapping[str, Collection[str]],
) -> dict[str, Any]:
    """The answer of `aggregatedList`; see `Call.aggregated`.

    Args:
        path: ends with the items' name in a scope.
        unreachable: the scopes that can't be seen, and where the answer says so: "warning", "list".
    """
    kind, field = f"compute#{schema[0].lower()}{schema[1:]}AggregatedList", path.rpartition("/")[2]
    by_scope: dict[str, list[Item]] = {}
    for scope, item in page.take((scope, item) for scope, item in items if scope not in unreachable):
        by_scope.setdefault(scope, []).append(item)
    answer: dict[str, Any] = {"kind": kind, "id": path, "selfLink": f"{HOST}/{path}", "items": {}}
    for scope in scopes:
        if scope in by_scope:
            answer["items"][scope] = {field: by_scope[scope]}
        elif "warning" in unreachable.get(scope, ()):
            answer["items"][scope] = {"warning": _warning("UNREACHABLE", f"The scope '{scope}' is unreachable.", scope)}
        elif scope not in unreachable:
            text = f"There are no results for scope '{scope}' on this page."
            answer["items"][scope] = {"warning": _warning("NO_RESULTS_ON_PAGE", text, scope)}
    named = [scope for scope in scopes if "list" in unreachable.get(scope, ())]
    if named:
        answer["unreachables"] = named
    if page.next:
        answer["nextPageToken"] = page.next
    return answer


def _warning(code: str, message: str, scope: str) -> dict[str, Any]:
    return {"code": code, "message": message, "data": [{"key": "scope", "value": scope}]}
