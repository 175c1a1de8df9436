"""Errors of the Compute API, however they arrive: an HTTP answer, an operation that failed, no answer at all.

Standard library only. error_catalogue.py says what they mean.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.credentials import login_hint
from hvdcloud.google.error_catalogue import CATALOGUE, OTHER_CONSUMER
from hvdcloud.google.error_rule import Action, Rule
from hvdcloud.json_values import mapping, mappings, parse_object, text

__all__ = ["CATALOGUE", "Action", "ApiError", "answer_error", "explained", "operation_errors"]

_MOST_WORDS = 2000
"""Characters of a message that are looked at; the longest that is known has 800."""
_SHARED_PROJECTS = frozenset({"764086051850", "32555940559"})
"""Of `gcloud auth application-default login` and of gcloud: calls count against these where no project is named."""
_TITLES = {
    "artifactregistry": "Artifact Registry",
    "billingbudgets": "Cloud Billing Budget",
    "cloudbilling": "Cloud Billing",
    "cloudresourcemanager": "Resource Manager",
    "compute": "Compute",
    "iam": "IAM",
    "serviceusage": "Service Usage",
    "storage": "Cloud Storage",
    "token": "token",
}


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
        service: the API that said so, as in its address: `compute`, `serviceusage`.
        quota_project: what the credentials count their calls against (`x-goog-user-project`), if they name one.
    """

    message: str
    status: int | None = None
    reason: str = ""
    code: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    quota: Mapping[str, Any] = field(default_factory=dict)
    project: str = ""
    service: str = "compute"
    quota_project: str = ""

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
        """The catalogue's first line that holds; the last one always does."""
        names = frozenset({self.code, self.reason} - {""})
        if names & {"SERVICE_DISABLED", "accessNotConfigured"} and self.other_consumer:
            names |= {OTHER_CONSUMER}
        message = f"{self.code} {self.reason} {self.message}"
        if self.quota:
            # The machine-readable part says more than the wording: a quota without a region is the project's.
            scope = "" if self.region else "globally"
            message = f"{self.quota.get('metricName', '')} {scope} {message}"
        return next(rule for rule in CATALOGUE if rule.holds(names, message, self.status))

    @property
    def action(self) -> Action:
        """What to do about it."""
        return self.rule.action

    @property
    def region(self) -> str | None:
        """The region that a quota belongs to, or that the error names."""
        told = text(mapping(self.quota.get("dimensions")).get("region"))
        return told or _found(r"\bregions?[ /]'?([a-z]+-[a-z]+\d+)\b", self.message)

    @property
    def zone(self) -> str | None:
        """The zone that the error names."""
        told = self.metadata.get("zone")
        return told or _found(r"\bzones?[ /]'?(?:projects/[^/]+/zones/)?([a-z]+-[a-z]+\d+-[a-z])\b", self.message)

    @property
    def permission(self) -> str | None:
        """What the caller would need: `compute.instances.create`."""
        return self.metadata.get("permission") or _found(r"Required '([^']+)' permission", self.message)

    @property
    def constraint(self) -> str | None:
        """The organization's policy that forbids it: `compute.requireOsLogin`."""
        return _found(r"[cC]onstraints/([\w.]*\w)", self.message)

    @property
    def consumer(self) -> str | None:
        """The project that the call counted against, by its id or number, if the API tells."""
        told = self.metadata.get("consumer") or _found(r"(?:been used in|to use) project ([\w:.-]*\w)", self.message)
        return re.split("[/:]", told)[-1] if told else None

    @property
    def other_consumer(self) -> str | None:
        """The project that the call counted against, if it is known not to be the one that is worked in."""
        if self.quota_project:
            return self.quota_project if self.quota_project != self.project else None
        told = self.consumer or ""
        known = told in _SHARED_PROJECTS or (told and not told.isdecimal())
        return told if known and told != self.project else None

    @property
    def metric(self) -> str | None:
        """The quota that is exceeded: `NVIDIA_T4_GPUS`."""
        # `compute.googleapis.com/nvidia_t4_gpus`, whose older name is in the limit's: NVIDIA-T4-GPUS-per-project-….
        told = str(self.quota.get("metricName", "")).rpartition("/")[2].upper()
        return told or _found(r"Quota '([^']+)' exceeded", self.message)

    @property
    def quota_family(self) -> str | None:
        """What kind of machine or GPU the quota is about, if there is one for each: `NVIDIA_H100`."""
        dimensions: Mapping[str, str] = self.quota.get("dimensions", {})
        return next((value for name, value in dimensions.items() if name.endswith("_family")), None)

    @property
    def cause(self) -> str:
        """Why, in one sentence without a full stop."""
        return (self.rule.cause or "{message}").format_map(self._words())

    @property
    def hint(self) -> str:
        """The next thing to do."""
        return self.rule.hint.format_map(self._words())

    def as_user_error(self, *, doing: str) -> HvdcloudError:
        """For the command line. `doing`: a verb and its object: `create 4 VMs in us-central1-a`."""
        details = "" if self.message in self.cause else f"{self.label}: {self.message}"
        return self.rule.error(f"cannot {doing}: {self.cause}", hint=self.hint, details=details)

    def _words(self) -> dict[str, str]:
        limit = self.quota.get("limit", _found(r"Limit: (\d+(?:\.\d+)?)", self.message))
        place = f"zone {self.zone}" if self.zone else f"region {self.region}" if self.region else "this place"
        return {
            "api": _TITLES.get(self.service, self.service),
            "service": f"{self.service}.googleapis.com",
            "label": self.label,
            "login": login_hint(),
            "message": " ".join(self.message.split()).rstrip("."),
            "project": self.project or "PROJECT",
            "metric": " of ".join(filter(None, [self.metric or "of this kind", self.quota_family])),
            "limit": f"{float(limit):g}" if limit is not None else "unknown",
            "permission": self.permission or "the permission",
            "consumer": self.other_consumer or self.consumer or self.project or "PROJECT",
            "constraint": self.constraint or "CONSTRAINT",
            "account": _found(r"([\w.-]+@[\w.-]*\w)", self.message) or "that service account",
            # A permission is missing where the resource is, such as the host project of a Shared VPC.
            "owner": _found(r"projects/([^/'\"]+)", self.metadata.get("resource", ""))
            or _found(r"(?:permission for|on resource) [^ ]*?projects/([^/'\"]+)", self.message)
            or self.project
            or "PROJECT",
            "url": self.metadata.get("activationUrl")
            or f"https://console.cloud.google.com/apis/library/{self.service}.googleapis.com?project={self.project}",
            "place": place,
        }


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
