"""The `filter` of list methods: https://google.aip.dev/160, as far as anybody asks for it here.

Comparisons `=` and `!=` of a field with a word or a quoted string, `AND`, parentheses; two expressions side by side are
joined by AND.

The other dialect, which gcloud sends: `field eq regex` and `field ne regex`, the whole field, several in parentheses
side by side. A filter is of one dialect (the description of `filter` in the discovery document).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.standins.compute.errors import ApiError, invalid_field, not_implemented
from tests.standins.compute.schema import discovery

Predicate = Callable[[Mapping[str, Any]], bool]
_TOKEN = re.compile(
    r"""\s*(?: (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*') | (?P<operator><=|>=|!=|=|<|>|:) | (?P<mark>[()])
             | (?P<word>[^\s()=!<>:"']+) )""",
    re.VERBOSE,
)


def compile_filter(text: str | None, *, schema: str) -> Predicate:
    """What says of a resource of this schema whether the filter lets it through.

    Raises:
        ApiError: 400 for a malformed filter, an unknown field or two dialects at once; 501 for more of AIP-160.
    """
    if not text or not text.strip():
        return lambda resource: True
    parser = _Parser(text, schema)
    predicate = parser.all()
    parser.expect_end()
    return predicate


class _Parser:
    def __init__(self, text: str, schema: str) -> None:
        self._text = text
        self._schema = schema
        self._dialects: set[str] = set()
        self._tokens: list[tuple[str, str]] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise self._error()
            kind = str(match.lastgroup)
            self._tokens.append((kind, match[kind]))
            position = match.end()
        self._tokens.reverse()

    def _error(self, why: str = "Invalid list filter expression.") -> ApiError:
        return invalid_field("filter", self._text, why)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[-1] if self._tokens else ("", "")

    def expect_end(self) -> None:
        if self._tokens or len(self._dialects) > 1:
            raise self._error()

    def all(self) -> Predicate:
        parts = [self._one()]
        while self._tokens and self._peek() != ("mark", ")"):
            if self._peek() == ("word", "AND"):
                self._take_aip()
            parts.append(self._one())
        return lambda resource: all(part(resource) for part in parts)

    def _one(self) -> Predicate:
        kind, value = self._take()
        if (kind, value) == ("mark", "("):
            inner = self.all()
            if self._take() != ("mark", ")"):
                raise self._error()
            return inner
        if kind != "word" or value == "AND":
            raise self._error()
        if value in ("NOT", "OR") or value.startswith("-"):
            raise not_implemented(f"'{value}' of the filter {self._text}")
        return self._comparison(value)

    def _take(self) -> tuple[str, str]:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop()

    def _take_aip(self) -> tuple[str, str]:
        """What only AIP-160 has."""
        self._dialects.add("AIP-160")
        return self._take()

    def _comparison(self, name: str) -> Predicate:
        self._check_field(name)
        if self._peek() in (("word", "eq"), ("word", "ne")):
            return self._match(name.split("."))
        kind, operator = self._take_aip()
        if kind != "operator":
            raise self._error()
        if operator not in ("=", "!="):
            raise not_implemented(f"'{operator}' of the filter {self._text}")
        kind, value = self._take()
        if kind not in ("word", "string"):
            raise self._error()
        if kind == "string":
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        path, wanted = name.split("."), operator == "="
        return lambda resource: (value in _texts(_field(resource, path))) is wanted

    def _match(self, path: list[str]) -> Predicate:
        self._dialects.add("regular expressions")
        _, operator = self._take()
        kind, value = self._take()
        if kind == "string":
            value = value[1:-1].replace(f"\\{value[0]}", value[0])
        elif kind != "word":
            raise self._error()
        try:
            pattern = re.compile(value)
        except re.error as error:
            raise self._error(f"Invalid list filter expression: {error}.") from None
        wanted = operator == "eq"
        return lambda resource: any(map(pattern.fullmatch, _texts(_field(resource, path)))) is wanted

    def _check_field(self, name: str) -> None:
        document = discovery()
        schema: Mapping[str, Any] = {"$ref": self._schema}
        for part in name.split("."):
            schema = document.subschema(schema)
            if schema.get("type") == "array":
                schema = document.subschema(schema["items"])
            inner = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
            if inner is None:
                raise self._error(f"Invalid list filter expression: no field '{name}'.")
            schema = inner


def _field(value: Any, path: list[str]) -> Any:
    for index, part in enumerate(path):
        if isinstance(value, list):
            found = [_field(one, path[index:]) for one in value]
            return [one for one in found if one is not None] or None
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in values]
