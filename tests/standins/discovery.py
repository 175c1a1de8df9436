"""The discovery document of one of Google's APIs: which methods exist, and what they take and return.

Requests are read as the document says and put in one form (64-bit integers as strings, as JSON answers have them).
Stricter than the APIs in one thing: a field that is output only is refused in a request, not ignored.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Check = Callable[[Any, str], Any]
Refuse = Callable[[str, str], Exception]
"""The API's own way to say that a request is not well-formed, of a reason (`invalid`, `required`) and a message."""
# https://protobuf.dev/programming-guides/json/
_FORMATS = {
    "google-duration": re.compile(r"-?[0-9]+(\.[0-9]{1,9})?s"),
    "google-datetime": re.compile(
        r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
    ),
}
_RANGES = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}


class SchemaError(ValueError):
    """A value isn't what the schema allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    id: str
    http: str
    path: str
    parameters: Mapping[str, Mapping[str, Any]]
    request: str | None
    response: str | None


@dataclass(slots=True)
class _Node:
    """One segment of the paths."""

    literal: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    methods: dict[str, Method] = field(default_factory=dict)


class Discovery:
    """The document, ready for use; see `load`."""

    def __init__(self, document: Mapping[str, Any], *, refuse: Refuse) -> None:
        self.base = document["basePath"] or "/"
        self.batch = "/" + document["batchPath"]
        self.methods: dict[str, Method] = {}
        self._refuse = refuse
        self._common = document["parameters"]
        self._schemas = document["schemas"]
        self._root = _Node()
        self._checks: dict[tuple[str, bool], Check] = {}
        self._making = threading.RLock()
        self._add(document)

    def _add(self, resource: Mapping[str, Any]) -> None:
        for one in resource.get("methods", {}).values():
            method = Method(
                id=one["id"],
                http=one["httpMethod"],
                path=one["path"],
                parameters=one.get("parameters", {}),
                request=one.get("request", {}).get("$ref"),
                response=one.get("response", {}).get("$ref"),
            )
            self.methods[method.id] = method
            node = self._root
            for segment in _segments(one["flatPath"] if "{+" in method.path else method.path):
                if segment.startswith("{"):
                    node.parameter = node = node.parameter or _Node()
                else:
                    node = node.literal.setdefault(segment, _Node())
            node.methods[method.http] = method
        for inner in resource.get("resources", {}).values():
            self._add(inner)

    def find(self, http: str, segments: list[str]) -> tuple[Method, dict[str, str]] | None:
        """The method of a path below the base, and its path parameters."""

        def walk(node: _Node, path: list[str]) -> Method | None:
            if not path:
                return node.methods.get(http)
            if (found := node.literal.get(path[0])) and (method := walk(found, path[1:])):
                return method
            return walk(node.parameter, path[1:]) if node.parameter is not None and path[0] else None

        # A verb first: to `get`, a name may end in one (`repositories/hvdcloud:getIamPolicy`).
        method = walk(self._root, _segments("/".join(segments))) if ":" in segments[-1] else None
        method = method or walk(self._root, segments)
        if method is None:
            return None
        values = re.fullmatch(_template(method.path), "/".join(segment.replace("/", "%2F") for segment in segments))
        assert values is not None, method
        return method, {name: value.replace("%2F", "/") for name, value in values.groupdict().items()}

    def check_parameters(
        self, method: Method, path: Mapping[str, str], query: Mapping[str, list[str]]
    ) -> dict[str, Any]:
        """The query's parameters with their types.

        Raises:
            Exception: of `refuse`; unknown, repeated, missing or malformed.
        """
        for name, value in path.items():
            self._parameter(method.parameters[name], name, value)
        typed: dict[str, Any] = {}
        for name, values in query.items():
            spec = method.parameters.get(name) or self._common.get(name)
            if spec is None or spec.get("location") != "query":
                message = f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.'
                raise self._refuse("invalid", message)
            if spec.get("repeated"):
                typed[name] = [self._parameter(spec, name, value) for value in values]
            elif len(values) != 1:
                raise self._refuse("invalid", f"Query parameter '{name}' is given {len(values)} times.")
            else:
                typed[name] = self._parameter(spec, name, values[0])
        for name, spec in method.parameters.items():
            if spec.get("required") and name not in path and name not in typed:
                raise self._refuse("required", f"Required field '{name}' not specified")
        return typed

    def _parameter(self, spec: Mapping[str, Any], name: str, text: str) -> Any:
        try:
            return _parameter(spec, name, text)
        except ValueError as error:
            raise self._refuse("invalid", f"Invalid value for field '{name}': '{text}'. {error}") from None

    def request(self, name: str, value: Any) -> Any:
        """A request's body in one form.

        Raises:
            Exception: of `refuse`.
        """
        try:
            return self._check(name, output=False)(value, "resource")
        except SchemaError as error:
            raise self._refuse("invalid", str(error)) from None

    def response(self, name: str, value: Any) -> None:
        """Raises SchemaError: the answer isn't one that the schema allows."""
        self._check(name, output=True)(value, name)

    def subschema(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a `$ref` stands for."""
        return self._schemas[schema["$ref"]] if "$ref" in schema else schema

    def _check(self, name: str, *, output: bool) -> Check:
        """Made when first needed; a schema may contain itself."""
        key = (name, output)
        # Another thread must not get what only stands for a check while that is made.
        with self._making:
            if key not in self._checks:
                self._checks[key] = lambda value, where: self._checks[key](value, where)
                self._checks[key] = self._compile(self._schemas[name], output=output)
            return self._checks[key]

    def _compile(self, schema: Mapping[str, Any], *, output: bool) -> Check:
        if "$ref" in schema:
            name = schema["$ref"]
            return lambda value, where: self._check(name, output=output)(value, where)
        kind = schema.get("type", "any")
        if kind == "object" and "properties" in schema:
            return self._object(schema, output=output)
        if kind == "object" and "additionalProperties" in schema:
            inner = self._compile(schema["additionalProperties"], output=output)
            return lambda value, where: {
                _text(key, where): inner(one, f"{where}.{key}") for key, one in _typed(value, dict, where).items()
            }
        if kind == "array":
            items = dict(schema["items"])
            if "pattern" in schema and items.get("type") == "string":
                items["pattern"] = schema["pattern"]
            inner = self._compile(items, output=output)
            return lambda value, where: [
                inner(one, f"{where}[{index}]") for index, one in enumerate(_typed(value, list, where))
            ]
        if kind == "boolean":
            return lambda value, where: _typed(value, bool, where)
        if kind == "integer" or schema.get("format") in ("int64", "uint64"):
            return _integer(schema, strict=output)
        if kind == "number":
            return _number
        if kind == "string":
            return _string(schema, output=output)
        return lambda value, where: value

    def _object(self, schema: Mapping[str, Any], *, output: bool) -> Check:
        checks = {name: self._compile(one, output=output) for name, one in schema["properties"].items()}
        closed = set() if output else {name for name, one in schema["properties"].items() if one.get("readOnly")}

        def check(value: Any, where: str) -> dict[str, Any]:
            result = {}
            for key, one in _typed(value, dict, where).items():
                inner = checks.get(key)
                if inner is None:
                    raise SchemaError(
                        f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field."
                    )
                if key in closed:
                    raise SchemaError(f"Invalid value for field '{where}.{key}': the field is output only.")
                if one is None and not output:
                    continue
                result[key] = inner(one, f"{where}.{key}")
            return result

        return check


def _typed(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise SchemaError(f"Invalid value at '{where}' ({kind.__name__}), {json.dumps(value)[:200]}")
    return value


def _text(value: Any, where: str) -> str:
    return str(_typed(value, str, where))


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SchemaError(f"Invalid value at '{where}' (number), {json.dumps(value)[:200]}")
    return value


def _integer(schema: Mapping[str, Any], *, strict: bool) -> Check:
    """64-bit ones are strings in JSON; a request may have either."""
    as_text = schema["type"] == "string"
    low, high = _RANGES[schema.get("format", "int32")]

    def check(value: Any, where: str) -> Any:
        right = isinstance(value, str) if as_text else isinstance(value, int) and not isinstance(value, bool)
        accepted = right or (not strict and isinstance(value, (int, str)) and not isinstance(value, bool))
        if not accepted or not re.fullmatch(r"-?[0-9]{1,20}", str(value)) or not low <= int(value) <= high:
            raise SchemaError(f"Invalid value at '{where}' ({schema.get('format')}), {json.dumps(value)[:200]}")
        return str(int(value)) if as_text else int(value)

    return check


def _string(schema: Mapping[str, Any], *, output: bool) -> Check:
    values = frozenset(schema.get("enum", ()))
    pattern = re.compile(schema["pattern"]) if "pattern" in schema else None
    is_bytes = schema.get("format") == "byte"
    form = _FORMATS.get(schema.get("format", ""))

    def check(value: Any, where: str) -> str:
        text = _text(value, where)
        if values and text not in values:
            raise SchemaError(f"Invalid value for field '{where}': '{text}'. Not one of {', '.join(sorted(values))}.")
        if pattern is not None and not pattern.fullmatch(text):
            raise SchemaError(
                f"Invalid value for field '{where}': '{text}'. Must be a match of regex '{pattern.pattern}'"
            )
        if form is not None and not form.fullmatch(text):
            raise SchemaError(f"Invalid value at '{where}' ({schema['format']}), {text[:200]}")
        if is_bytes:
            try:
                base64.b64decode(text, validate=True, altchars=b"-_" if not output else None)
            except binascii.Error:
                raise SchemaError(f"Invalid value at '{where}' (bytes), {text[:200]}") from None
        return text

    return check


def _parameter(spec: Mapping[str, Any], name: str, text: str) -> Any:
    """The typed value of a parameter. Raises ValueError: it is malformed, and why."""
    if "pattern" in spec and not re.fullmatch(spec["pattern"], text):
        raise ValueError(f"Must be a match of regex '{spec['pattern']}'")
    if "enum" in spec and text not in spec["enum"]:
        raise ValueError(f"Not one of {', '.join(spec['enum'])}.")
    if spec["type"] == "boolean":
        # In any case: gcloud, a Python program, sends `True`.
        if text.lower() not in ("true", "false"):
            raise ValueError("Not a boolean.")
        return text.lower() == "true"
    if spec["type"] == "integer" or spec.get("format") in _RANGES:
        low, high = _RANGES[spec["format"]]
        low = max(low, int(spec.get("minimum", low)))
        high = 500 if name == "maxResults" else min(high, int(spec.get("maximum", high)))
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise ValueError(f"Must be an integer of {low} to {high}.")
        return int(text)
    return text


def _segments(path: str) -> list[str]:
    """What is between the slashes; `{id}:cancel` is two."""
    head, slash, last = path.rpartition("/")
    name, colon, verb = last.partition(":")
    return [*(head.split("/") if slash else ()), name, *((colon + verb,) if colon else ())]


@functools.cache
def _template(path: str) -> re.Pattern[str]:
    """`v1/{+name}:cancel` as a regular expression; a parameter with a plus may hold slashes."""
    parts = re.split(r"\{(\+?)(\w+)\}", path)
    text = re.escape(parts[0])
    for plus, name, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text += f"(?P<{name}>{'.+' if plus else '[^/]+'}){re.escape(rest)}"
    return re.compile(text)


def load(name: str, *, refuse: Refuse) -> Discovery:
    """An API as google-api-python-client carries it.

    Args:
        name: `compute.v1`.
    """
    import googleapiclient

    path = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents" / f"{name}.json"
    return Discovery(json.loads(path.read_bytes()), refuse=refuse)
