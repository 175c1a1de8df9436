"""A stand-in of Google's Security Token Service: an access token for one with a Credential Access Boundary.

It takes what https://cloud.google.com/iam/docs/downscoping-short-lived-credentials describes and nothing else, and
knows what each token that it gave may do: `allows` is what a storage server asks.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from tests.support.http_server import Asked, Reply, answering

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
FIELDS = {"grant_type", "requested_token_type", "subject_token", "subject_token_type", "options"}
READS = {"get", "list"}
MAY = {
    "roles/storage.objectUser": {*READS, "create", "delete", "update"},
    "roles/storage.objectCreator": {"create"},
    "roles/storage.objectViewer": READS,
}
MOST_RULES = 10
_RESOURCE = re.compile(r"//storage\.googleapis\.com/projects/_/buckets/([a-z0-9._-]+)")
_TERM = re.compile(
    r'resource\.name\.startsWith\("projects/_/buckets/(?P<bucket>[^/"]+)/objects/(?P<objects>[^"\\]*)"\) \|\| '
    r'api\.getAttribute\("storage\.googleapis\.com/objectListPrefix", ""\)\.startsWith\("(?P<listed>[^"\\]*)"\)'
)


class RefusedError(Exception):
    """The request is not as Google takes it."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a token may do below a prefix of a bucket."""

    bucket: str
    prefix: str
    may: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Given:
    """A token that was given out."""

    expiry: float
    rules: tuple[Rule, ...]


@dataclass
class TokenService:
    """The service, and what a test commands it to do."""

    lifetime: float = 3600.0
    """Seconds, of tokens given out from now on."""
    subject: str = ""
    """The access token that it exchanges; empty: any."""
    refuses: bool = False
    says_lifetime: bool = True
    given: dict[str, Given] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allows(self, token: str, action: str, bucket: str, name: str) -> int:
        """200; 401: no such token, or it has ended; 403: not with this token. `name`: the object, or the prefix of a
        list."""
        given = self.given.get(token)
        if given is None or given.expiry <= time.time():
            return 401
        rules = [rule for rule in given.rules if rule.bucket == bucket and name.startswith(rule.prefix)]
        return 200 if any(action in rule.may for rule in rules) else 403

    def answer(self, asked: Asked) -> Reply:
        """To one request."""
        try:
            rules = self._read(asked)
        except RefusedError as error:
            return Reply({"error": "invalid_request", "error_description": str(error)}, status=400)
        if self.refuses:
            return Reply({"error": "invalid_grant", "error_description": "the login has been revoked"}, status=400)
        token = f"ya29.d.{secrets.token_urlsafe(48)}"
        with self._lock:
            self.given[token] = Given(expiry=time.time() + self.lifetime, rules=rules)
        found: dict[str, Any] = {"access_token": token, "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer"}
        return Reply({**found, "expires_in": int(self.lifetime)} if self.says_lifetime else found)

    def _read(self, asked: Asked) -> tuple[Rule, ...]:
        kind = asked.headers.get("Content-Type", "")
        if (asked.method, asked.path) != ("POST", "/v1/token") or kind != "application/x-www-form-urlencoded":
            raise RefusedError(f"{asked.method} {asked.path} with {kind}")
        pairs = parse_qsl(asked.body.decode(), strict_parsing=True, keep_blank_values=True)
        fields = dict(pairs)
        self.asked.append(fields)
        if len(fields) != len(pairs) or set(fields) != FIELDS:
            raise RefusedError(f"the fields are {sorted(fields)}")
        if fields["grant_type"] != GRANT:
            raise RefusedError("grant_type")
        if {fields["subject_token_type"], fields["requested_token_type"]} != {ACCESS_TOKEN}:
            raise RefusedError("the kinds of tokens")
        if not fields["subject_token"] or fields["subject_token"] != (self.subject or fields["subject_token"]):
            raise RefusedError("the subject token is not known")
        options = json.loads(unquote(fields["options"]))
        if set(options) != {"accessBoundary"} or set(options["accessBoundary"]) != {"accessBoundaryRules"}:
            raise RefusedError("options")
        rules = options["accessBoundary"]["accessBoundaryRules"]
        if not 1 <= len(rules) <= MOST_RULES:
            raise RefusedError(f"{len(rules)} rules")
        return tuple(found for rule in rules for found in _rules(rule))


def _rules(value: dict[str, Any]) -> list[Rule]:
    """One for each folder that the condition names; without a condition, for the whole bucket."""
    if set(value) - {"availabilityCondition"} != {"availableResource", "availablePermissions"}:
        raise RefusedError(f"a rule has {sorted(value)}")
    resource = _RESOURCE.fullmatch(value["availableResource"])
    given = value.get("availabilityCondition")
    if resource is None or (given is not None and set(given) - {"expression", "title"}):
        raise RefusedError(f"{value['availableResource']}: {given}")
    prefixes = [""] if given is None else _folders(given.get("expression", ""), bucket=resource[1])
    roles = [str(each).removeprefix("inRole:") for each in value["availablePermissions"]]
    if not roles or set(roles) - set(MAY):
        raise RefusedError(f"permissions {value['availablePermissions']}")
    may = frozenset().union(*(MAY[role] for role in roles))
    return [Rule(bucket=resource[1], prefix=prefix, may=may) for prefix in prefixes]


def _folders(expression: str, *, bucket: str) -> list[str]:
    found: list[str] = []
    at = 0
    if not expression:
        raise RefusedError("the condition is empty")
    while at < len(expression):
        at += 4 if at and expression.startswith(" || ", at) else 0
        term = _TERM.match(expression, at)
        if term is None:
            raise RefusedError(f"the condition {expression}")
        if term["bucket"] != bucket or term["objects"] != term["listed"]:
            raise RefusedError("the condition names other objects than its list, or another bucket")
        found.append(term["objects"])
        at = term.end()
    return found


@contextmanager
def token_service(*, host: str = "127.0.0.1", **options: Any) -> Iterator[TokenService]:
    """The service for one block; `url` is its endpoint."""
    service = TokenService(**options)
    with answering(service.answer, host=host) as url:
        service.url = f"{url}/v1/token"
        yield service
