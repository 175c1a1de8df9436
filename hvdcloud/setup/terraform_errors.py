"""What Terraform's failures mean, for people. Pure.

Google's provider hands on the API's own error as text (`googleapi: Error 403: …`). It is parsed here, and then means
what it means everywhere else in hvdcloud (google/error_catalogue.py). Errors that only Terraform has are listed here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.google.credentials import login_hint

if TYPE_CHECKING:
    from hvdcloud.google.errors import ApiError

_LAST_LINES = 20
_CONTINUES = "then hvdcloud setup again: it continues from there"


class ApiOffError(CredentialsError):
    """An API is off, or was switched on so short a time ago that not every server of Google's knows it."""


class AlreadyThereError(UsageError):
    """What was to be made, at these Terraform `addresses`, already exists and is not in Terraform's state."""

    addresses: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One error or warning of Terraform's.

    https://developer.hashicorp.com/terraform/internals/machine-readable-ui#diagnostic
    """

    severity: str = "error"
    summary: str
    detail: str = ""
    address: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Diagnostic:
        """As a line of `-json` output has it."""
        fields = {"severity": "error", "summary": "", "detail": "", "address": ""} | dict(value)
        return cls(**{name: str(fields[name]) for name in cls.__slots__})

    @property
    def text(self) -> str:
        return f"{self.summary}\n{self.detail}".strip()

    @property
    def line(self) -> str:
        """Its first line, with what it is about."""
        first = next((line.strip() for line in self.text.splitlines() if line.strip()), "no message")
        return f"{self.address}: {first}" if self.address else first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One line: the first whose words are found decides. `cause` and `hint` may use {project} and the named groups."""

    words: str
    error: type[HvdcloudError]
    cause: str
    hint: str


# Messages of Terraform and of its provider, as in their sources.
_RULES = (
    _Rule(
        words=r"could not find default credentials|No credentials loaded|Attempted to load application default "
        r"credentials|invalid_grant|invalid_rapt|oauth2: |reauth related error|Error 401|ACCESS_TOKEN_EXPIRED",
        error=CredentialsError,
        cause="there are no Google credentials that Terraform can use, or they have expired",
        hint=f"{{login}}, {_CONTINUES}",
    ),
    _Rule(
        words=r"billing account (?:for the owning project )?is disabled|billing to be enabled|must be enabled for "
        r"activation|billing must be enabled|UREQ_PROJECT_BILLING_NOT_FOUND|UREQ_PROJECT_BILLING_NOT_OPEN|"
        r"BILLING_DISABLED|billingNotEnabled|accountDisabled|requires billing",
        error=CredentialsError,
        cause="project {project} has no active billing account",
        hint=f"gcloud billing projects link {{project}} --billing-account=ID, or "
        f"https://console.cloud.google.com/billing/linkedaccount?project={{project}}; {_CONTINUES}",
    ),
    _Rule(
        words=r"(?s)Error creating Budget.*Error 403|billingAccounts/(?P<account>[0-9A-F-]+).*Error 403",
        error=CredentialsError,
        cause="the billing account lets only those with roles/billing.costsManager make a budget",
        hint="ask an administrator of the billing account, or take budget out of hvdcloud.tfvars",
    ),
    _Rule(
        words=r"requested bucket name is not available|bucket name.*already (?:in use|taken)",
        error=UsageError,
        cause="another user has a bucket of this name, which is unique in the world",
        hint="hvdcloud setup --bucket OTHER-NAME",
    ),
    _Rule(
        words=r"without `?force_destroy`?|bucket you tried to delete is not empty",
        error=UsageError,
        cause="the bucket still holds something, and nothing in it is deleted by this command",
        hint="hvdcloud pull what is worth keeping, delete the rest with gcloud storage rm, then again",
    ),
    _Rule(
        words=r"Error 409|alreadyExists|ALREADY_EXISTS|already exists|you already own it",
        error=AlreadyThereError,
        cause="something of this name exists already: project {project} was set up from another machine, or by hand",
        hint="type hvdcloud setup on that machine; or delete what is not in use, and set up again",
    ),
    _Rule(
        words=r"Error acquiring the state lock|state blob is already locked",
        error=UsageError,
        cause="another Terraform is running in the same folder",
        hint="wait for it to end, then hvdcloud setup again",
    ),
    _Rule(
        words=r"Unsupported Terraform Core version|Unsupported OpenTofu Core version",
        error=UsageError,
        cause="this Terraform is too old",
        hint="install a newer one: https://developer.hashicorp.com/terraform/install",
    ),
    _Rule(
        words=r"Failed to query available provider packages|could not connect to registry|Failed to install provider|"
        r"Failed to request discovery document",
        error=NodeError,
        cause="Terraform cannot get its provider for Google",
        hint="check this machine's network and proxy, then hvdcloud setup again",
    ),
    _Rule(
        words=r"No space left on device|no space left on device|disk quota exceeded",
        error=CapacityError,
        cause="the disk is full",
        hint=f"free some space, {_CONTINUES}",
    ),
    _Rule(
        words=r"dial tcp|no such host|connection refused|connection reset|i/o timeout|TLS handshake timeout|"
        r"context deadline exceeded|network is unreachable",
        error=NodeError,
        cause="Google's API cannot be reached",
        hint=f"check this machine's network and proxy, {_CONTINUES}",
    ),
)
_SERVICES = (
    ("google_compute_", "compute"),
    ("google_storage_", "storage"),
    ("google_artifact_registry_", "artifactregistry"),
    ("google_service_account", "iam"),
    ("google_project_service", "serviceusage"),
    ("google_project_iam_custom_role", "iam"),
    ("google_project", "cloudresourcemanager"),
    ("google_billing_", "billingbudgets"),
)


def terraform_error(
    failures: Sequence[Diagnostic], *, doing: str, project: str, ended: int, names: Mapping[str, str] | None = None
) -> HvdcloudError:
    """The error for the user.

    Args:
        failures: what Terraform said; may be empty.
        doing: what was tried, as a verb and its object.
        ended: Terraform's exit code, negative for a signal.
        names: what Terraform's addresses are, for people.
    """
    if not failures:
        how = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
        said = f"cannot {doing}: Terraform ended with {how} and said nothing"
        return NodeError(said, hint="hvdcloud setup again: it continues from there")
    known = names or {}
    tried = [f"set up {known.get(each.address, each.address)}" if each.address else doing for each in failures]
    meanings = [_meaning(failure, doing=doing, project=project) for failure, doing in zip(failures, tried, strict=True)]
    # Who may do nothing, or has no billing, sees that first, not what follows from it.
    first = min(meanings, key=lambda error: (isinstance(error, ApiOffError), not isinstance(error, CredentialsError)))
    if isinstance(first, AlreadyThereError):
        both = zip(failures, meanings, strict=True)
        first.addresses = [failure.address for failure, error in both if isinstance(error, AlreadyThereError)]
    first.details = "\n".join(dict.fromkeys(failure.line for failure in failures))
    return first


def begun_here(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Addresses whose creation began in an apply, as its events say, but for those that Google refused.

    How some ended is unknown: Terraform died, or its provider. Those that were made count too: Terraform
    writes its state in place, so that one which is killed as it writes leaves none.
    """
    begun: dict[str, None] = {}
    for event in events:
        address = event.get("hook", {}).get("resource", {}).get("addr", "")
        if event.get("type") == "apply_start" and event["hook"].get("action") == "create":
            begun[address] = None
        elif event.get("type") == "diagnostic":
            said = Diagnostic.from_json(event["diagnostic"])
            # An answer of Google's: it was refused, so that nothing was made.
            if re.search(r"Error 4\d\d|rpc error: code = (?!Unavailable|Unknown|Internal|DeadlineExceeded)", said.text):
                begun.pop(said.address, None)
    return list(begun)


def plain_diagnostics(text: str) -> list[Diagnostic]:
    """The errors in output that is not JSON; without any, its last lines are one."""
    lines = [re.sub(r"^[│╷╵|]\s?", "", line).rstrip() for line in text.splitlines()]
    starts = [index for index, line in enumerate(lines) if line.startswith("Error: ")]
    if not starts:
        last = [line for line in lines if line][-_LAST_LINES:]
        return [Diagnostic(summary=last[0], detail="\n".join(last[1:]))] if last else []
    return [
        Diagnostic(summary=lines[start].removeprefix("Error: "), detail="\n".join(lines[start + 1 : end]).strip())
        for start, end in itertools.pairwise([*starts, len(lines)])
    ]


def _meaning(failure: Diagnostic, *, doing: str, project: str) -> HvdcloudError:
    for rule in _RULES:
        if re.search(rule.words, failure.text):
            words = {"project": project, "login": login_hint()}
            return rule.error(f"cannot {doing}: {rule.cause.format_map(words)}", hint=rule.hint.format_map(words))
    said = _api_error(failure, project=project)
    if said is None:
        message = f"cannot {doing}: {failure.line}"
        return UsageError(message, hint="fix what it names, then hvdcloud setup again: it continues")
    error = said.as_user_error(doing=doing)
    if {said.code, said.reason} & {"SERVICE_DISABLED", "accessNotConfigured"} and not said.other_consumer:
        error = ApiOffError(error.message, hint=error.hint)
    if "the permission" in error.hint:  # The answer does not say which.
        error.hint = f"have an owner of project {project} run hvdcloud setup, or ask for roles/owner"
    error.hint = error.hint if "again" in error.hint else f"{error.hint}; {_CONTINUES}"
    return error


def _api_error(failure: Diagnostic, *, project: str) -> ApiError | None:
    """The answer of Google's API that the provider's words quote; None if they quote none."""
    from hvdcloud.google.errors import ApiError

    text = failure.text
    quoted = re.search(r"Error (?P<code>\d{3})(?:: | )(?P<message>[^\n]*)", text) or re.search(
        r"rpc error: code = (?P<code>\w+) desc = (?P<message>[^\n]*)", text
    )
    if quoted is None:
        return None
    message, status = quoted["message"].strip(), quoted["code"]
    info = _error_info(text)
    # The older reason follows the message: `…, accessNotConfigured`.
    reason = re.search(r", (\w+)$", message)
    metadata = {str(key): str(value) for key, value in info.get("metadata", {}).items()}
    rpc_codes = {"PermissionDenied": 403, "ResourceExhausted": 429, "Unavailable": 503, "NotFound": 404}
    code = str(info.get("reason", ""))
    if not code and re.search(r"Quota .*exceeded|quota limit|Limit Exceeded|exceeded quota", message, re.IGNORECASE):
        code = "QUOTA_EXCEEDED"
    return ApiError(
        message=message[: reason.start()] if reason else message,
        status=int(status) if status.isdecimal() else rpc_codes.get(status, 500),
        reason=reason.group(1) if reason else "",
        code=code,
        metadata=metadata,
        project=project,
        service=metadata.get("service", "").removesuffix(".googleapis.com") or _service(failure.address),
    )


def _error_info(text: str) -> Mapping[str, Any]:
    """google.rpc.ErrorInfo among the details that the provider prints as JSON."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"(?m)^\[", text)):
        try:
            details, _ = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            continue
        for entry in details if isinstance(details, list) else ():
            if isinstance(entry, dict) and str(entry.get("@type", "")).endswith("google.rpc.ErrorInfo"):
                return entry
    return {}


def _service(address: str) -> str:
    kind = address.split(".")[-2] if "." in address else address
    return next((service for prefix, service in _SERVICES if kind.startswith(prefix)), "compute")
