"""Errors of Google's APIs, however they arrive: an HTTP answer, an operation that failed, no answer at all.

Standard library only. error_rules.py says what to do about them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.credentials import login_hint
from hvdcloud.google.error_rules import RULES, Action, Rule
from hvdcloud.json_values import mapping, mappings, parse_object, text

_MOST_WORDS = 2000
"""Characters of a message that are looked at; the longest that is known has 800."""


@dataclass(eq=False)
class ApiError(Exception):
    """A call that the Compute API refused, that never arrived, or an operation that ended with an error.

    Args:
        message: the API's own words.
        status: the HTTP status; None: no answer came, or an operation did not tell one.
        reason: `errors[].reason` of an answer, or `connectionError`, `timeout`.
        code: an operation's error code, or an answer's ErrorInfo reason.
        metadata: of the answer's ErrorInfo: permission, activationUrl …
        quota: of the operation's `quotaInfo`: metricName, limit, dimensions.
        project: where it happened.
        service: the API that said so, as in its address: `compute`, `iam`.
    """

    message: str
    status: int | None = None
    reason: str = ""
    code: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    quota: Mapping[str, Any] = field(default_factory=dict)
    project: str = ""
    service: str = "compute"

    def __post_init__(self) -> None:
        # What answers may not be Google, and the patterns below take their time with a very long line.
        self.message = self.message[:_MOST_WORDS]
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.label}: {self.message}"

    @property
    def label(self) -> str:
        """In short, for a table or a line of progress: `ZONE_RESOURCE_POOL_EXHAUSTED`, `503 backendError`."""
        return self.code or " ".join(str(part) for part in (self.status, self.reason) if part) or "error"

    @property
    def rule(self) -> Rule:
        """The first rule that holds; the last one always does."""
        names = frozenset({self.code, self.reason})
        message = f"{self.code} {self.reason} {self.message}"
        if self.quota:
            # The machine-readable part says more than the wording: a quota without a region is the project's.
            message += f" {self.metric} {'' if self.region else 'globally'}"
        return next(rule for rule in RULES if rule.holds(names, " ".join(message.split()), self.status))

    @property
    def action(self) -> Action:
        """What to do about it."""
        return self.rule.action

    @property
    def region(self) -> str | None:
        """The region that a quota belongs to, or that the message names."""
        told = text(mapping(self.quota.get("dimensions")).get("region"))
        return told or _found(r"\bregions?[ /]'?([a-z]+-[a-z]+\d+)\b", self.message)

    @property
    def permission(self) -> str | None:
        """What the caller would need: `compute.instances.create`."""
        return self.metadata.get("permission") or _found(r"Required '([^']+)' permission", self.message)

    @property
    def metric(self) -> str | None:
        """The quota that is exceeded: `NVIDIA_T4_GPUS`."""
        # `compute.googleapis.com/nvidia_t4_gpus`.
        told = str(self.quota.get("metricName", "")).rpartition("/")[2].upper()
        return told or _found(r"Quota '([^']+)' exceeded", self.message)

    @property
    def cause(self) -> str:
        """Google's own words, in one sentence without a full stop."""
        said = " ".join(self.message.split()).rstrip(". ")
        failed = not self.code and self.status is not None and self.status >= 500
        return f"the {self.service} API answers {self.label}: {said}" if failed else said

    @property
    def hint(self) -> str:
        """The next thing to do."""
        project = self.project or "PROJECT"
        # A permission is missing where the resource is, which may be another project.
        resource = f"{self.metadata.get('resource', '')} {self.message}"
        owner = _found(r"(?:^|permission for [^ ]*?|on resource [^ ]*?)projects/([^/'\"]+)", resource)
        return self.rule.hint.format(
            project=project,
            service=f"{self.service}.googleapis.com",
            constraint=_found(r"[cC]onstraints/([\w.]*\w)", self.message) or "CONSTRAINT",
            permission=self.permission or "what the message names",
            owner=owner or project,
            login=login_hint(),
        )

    def as_user_error(self, *, doing: str) -> HvdcloudError:
        """For the command line. `doing`: a verb and its object: `create 4 VMs in us-central1-a`."""
        return self.rule.error(f"cannot {doing}: {self.cause}", hint=self.hint)


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Raises an ApiError of the block as `as_user_error` says it."""
    try:
        yield
    except ApiError as error:
        raise error.as_user_error(doing=doing) from error


def answer_error(status: int, body: bytes | str, *, project: str = "", service: str = "compute") -> ApiError:
    """What an HTTP answer of 400 or more says. A body that is not the API's JSON, such as a proxy's page, is kept."""
    said = body.decode(errors="replace") if isinstance(body, bytes) else body
    error = mapping((parse_object(said) or {}).get("error"))
    if not error:
        return ApiError(message=said.strip()[:500] or f"HTTP {status}", status=status, project=project, service=service)
    details = mappings(error.get("details"))
    info = next((each for each in details if str(each.get("@type", "")).endswith("google.rpc.ErrorInfo")), {})
    return ApiError(
        message=str(error.get("message", "")),
        status=status,
        reason=next((text(each.get("reason")) for each in mappings(error.get("errors"))), ""),
        code=text(info.get("reason")),
        metadata=_texts(info.get("metadata")),
        project=project,
        service=service,
    )


def operation_errors(operation: Mapping[str, Any]) -> list[ApiError]:
    """Every error of an operation that is DONE; an empty list means that it succeeded.

    An operation may have failed without any HTTP status, so `error.errors` decides; one that has only a status has
    failed as well.
    """
    code = operation.get("httpErrorStatusCode")
    status = code if isinstance(code, int) else None
    project = _found(r"/projects/([^/]+)/", str(operation.get("selfLink", ""))) or ""
    errors = mappings(mapping(operation.get("error")).get("errors"))
    if not errors and status is not None and status >= 400:
        errors = [{"message": operation.get("httpErrorMessage") or operation.get("statusMessage") or f"HTTP {status}"}]
    found = []
    for error in errors:
        details = mappings(error.get("errorDetails"))
        info = next((mapping(each["errorInfo"]) for each in details if "errorInfo" in each), {})
        found.append(
            ApiError(
                message=text(error.get("message")) or text(error.get("code")) or "no message",
                status=status,
                reason=text(info.get("reason")),
                code=text(error.get("code")),
                metadata=_texts(info.get("metadatas")),
                quota=next((mapping(each["quotaInfo"]) for each in details if "quotaInfo" in each), {}),
                project=project,
            )
        )
    return found


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(found)[:_MOST_WORDS] for key, found in mapping(value).items()}


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match.group(1) if match else None
