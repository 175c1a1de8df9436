"""What to do about an error of Google's APIs: try again, elsewhere, or stop; whose fault it is; what to type next.

An answer and an operation that failed speak different dialects (`quotaExceeded` and `QUOTA_EXCEEDED`), so a rule names
both. The first rule that holds decides; the last one always does. tests/unit/real_errors.yaml has real messages, with
the place where each was published.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.google.credentials import NETWORK_HINT


class Action(str, Enum):
    """What the caller of a failed create does next."""

    RETRY = "retry"
    """The same request, a little later. After a failed *operation* under a new requestId: the old one would only give
    back the operation that failed."""
    NEXT_ZONE = "next zone"
    NEXT_REGION = "next region"
    """Every other zone of this region would fail in the same way."""
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Rule:
    """Holds if the error has one of the names, if its message has the text, or if it has one of the statuses."""

    action: Action
    error: type[HvdcloudError]
    hint: str
    """May use {project}, {service}, {constraint}, {permission}, {owner} and {login}."""
    names: str = ""
    """Operation error codes, ErrorInfo reasons and the older `errors[].reason`, separated by spaces."""
    text: str = ""
    """Regular expression for the code, the reason and the message."""
    statuses: Collection[int] = ()

    def holds(self, names: frozenset[str], message: str, status: int | None) -> bool:
        """The rule decides this error."""
        if not names.isdisjoint(self.names.split()) or status in self.statuses:
            return True
        return bool(self.text) and re.search(self.text, message, re.IGNORECASE) is not None


QUOTAS_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
"""Where a project sees its quotas and asks for more."""
ELSEWHERE = "list other zones in gce.zones, change gce.provisioning, or take another GPU"
"""Where there is no capacity."""

_PERMISSION = (
    "ask an administrator for {permission}: https://console.cloud.google.com/iam-admin/iam?project={owner} shows who "
    "may do what"
)
_MORE_QUOTA = f"ask for more at {QUOTAS_PAGE}, or use fewer nodes or GPUs"
_LATER = f"try again later, {ELSEWHERE}"
_AGAIN = "run the command again; https://status.cloud.google.com shows outages"
_SETTING = "correct what the message names in hvdcloud.yaml; hvdcloud up --dry-run --json prints the request"
_PROJECT = "correct gce.project; gcloud projects list shows yours"
_POLICY = "gcloud org-policies describe {constraint} --effective --project={project} shows what is allowed"
_STOP, _REGION, _ZONE, _RETRY = Action.STOP, Action.NEXT_REGION, Action.NEXT_ZONE, Action.RETRY

ALREADY_EXISTS = "RESOURCE_ALREADY_EXISTS alreadyExists"
TOO_FEW = "VM_MIN_COUNT_NOT_REACHED"
"""What a bulkInsert may say although only the VMs' own operations know why."""

RULES: tuple[Rule, ...] = (
    # --- the project, the login and the organization's policies: no other zone would change it ----------------------
    # Calls of a person's login count against the login's own project, which may be another one.
    Rule(
        _STOP,
        CredentialsError,
        "gcloud services enable {service} --project={project}, and wait a minute; of a project that is not yours, "
        "or without a quota project: gcloud auth application-default set-quota-project {project}",
        names="SERVICE_DISABLED accessNotConfigured USER_PROJECT_DENIED",
    ),
    Rule(
        _STOP,
        CredentialsError,
        "https://console.cloud.google.com/billing/linkedaccount?project={project}",
        text=r"BILLING_DISABLED|billingNotEnabled|accountDisabled|UREQ_PROJECT_BILLING|billing (?:is )?disabled|"
        r"billing must be enabled|requires billing to be enabled",
    ),
    Rule(
        _STOP, UsageError, _PROJECT, text=r"CONSUMER_INVALID|RESOURCE_PROJECT_INVALID|'projects/[^/']+' was not found"
    ),
    Rule(
        _STOP,
        CredentialsError,
        "{login}",
        text=r"ACCESS_TOKEN_SCOPE_INSUFFICIENT|insufficient authentication scopes",
        statuses={401},
    ),
    Rule(
        _REGION,
        CredentialsError,
        f"list zones that the policy allows in gce.zones: {_POLICY}",
        text=r"constraints/gcp\.resourceLocations|LOCATION_ORG_POLICY_VIOLATED",
    ),
    Rule(
        _STOP,
        CredentialsError,
        f"ask the organization's administrator for an exception; {_POLICY}; VMs without an external address have "
        "gce.ssh.source: iap",
        text=r"Constraint \S+ violated|violates constraint|denied by (?:custom )?org polic",
    ),
    # --- too many calls ---------------------------------------------------------------------------------------------
    Rule(
        _RETRY,
        NodeError,
        "wait a minute and run the command again",
        text=r"rateLimitExceeded|RATE_LIMIT_EXCEEDED|RESOURCE_OPERATION_RATE_EXCEEDED|CONCURRENT_OPERATIONS|"
        r"Rate Limit Exceeded|Operation rate exceeded|limit '[^']+ per (?:minute|second|\d+ seconds)",
    ),
    # --- a request that no zone takes, whatever the code: UNSUPPORTED_OPERATION and stockouts have been seen --------
    Rule(
        _STOP,
        UsageError,
        "change gce.machine_type, gce.gpu or gce.provisioning: they do not go together",
        text=r"not compatible (?:for|with)|\bnot supported\b(?! in (?:the )?zone)|\b(?:does|do) not support\b|"
        r"without accelerator\(s\)",
    ),
    # --- quota and capacity -----------------------------------------------------------------------------------------
    Rule(_STOP, CapacityError, _MORE_QUOTA, text=r"QUOTA_?EXCEEDED.*(?:_ALL_REGIONS\b|\bglobally\b)"),
    Rule(_REGION, CapacityError, _MORE_QUOTA, names="QUOTA_EXCEEDED quotaExceeded"),
    Rule(
        _REGION,
        CapacityError,
        _LATER,
        names="REGION_RESOURCE_POOL_EXHAUSTED REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        text=r"External IP resource pool is exhausted",
    ),
    Rule(
        _REGION,
        CapacityError,
        "give the subnetwork a larger range, or name another one in gce.subnetwork",
        names="IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS",
    ),
    # UNSUPPORTED_OPERATION has been seen when a Spot VM is preempted while it is created.
    Rule(
        _ZONE,
        CapacityError,
        _LATER,
        names="ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS RESOURCE_POOL_EXHAUSTED "
        "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS GPU_STOCKOUT STOCKOUT insufficientCapacity resourcePoolExhausted "
        f"UNSUPPORTED_OPERATION {TOO_FEW}",
        text=r"\bPREEMPTED\b|failed to start due to preemption",
    ),
    # --- something that the request names is not there, or is there already -----------------------------------------
    # A new account is unknown to Compute Engine at first.
    Rule(
        _RETRY,
        UsageError,
        "hvdcloud setup makes the account, which Compute Engine knows some minutes later; else correct "
        "gce.service_account",
        text=r"of type 'serviceAccount' was not found|/serviceAccounts/\S+ was not found",
    ),
    Rule(
        _REGION,
        UsageError,
        "name a subnetwork of this region in gce.subnetwork, or list zones of its region in gce.zones",
        text=r"/subnetworks/\S+ was not found|No default subnetwork was found|subnetwork resource cannot be found",
    ),
    Rule(
        _STOP,
        UsageError,
        f"{_SETTING}; hvdcloud setup makes gce.network and gce.subnetwork",
        text=r"/(?:networks|images|imageFamilyViews)/\S+ was not found|Network '\S+' was not found|"
        r"(?:network|image) resource cannot be found|Subnetwork (?:should be|was not) specified|"
        r"cross.project referenc|disk size cannot be smaller than the image size",
    ),
    Rule(
        _ZONE,
        UsageError,
        "list zones that have it in gce.zones, or leave gce.zones empty",
        text=r"/(?:machineTypes|acceleratorTypes|diskTypes)/\S+ was not found|(?:machine|accelerator|disk) type .* "
        r"does not exist in zone|Location \S+ is not found or access is unauthorized|LOCATION_POLICY_VIOLATED",
    ),
    # After a few times it means no capacity: https://github.com/skypilot-org/skypilot/issues/1797
    Rule(_RETRY, CapacityError, _LATER, names="RESOURCE_NOT_FOUND"),
    Rule(
        _STOP,
        UsageError,
        "hvdcloud list shows whose it is; hvdcloud down deletes ours, else take another --name",
        names=ALREADY_EXISTS,
    ),
    Rule(
        _STOP,
        CredentialsError,
        _PERMISSION,
        names="IAM_PERMISSION_DENIED PERMISSION_DENIED PERMISSIONS_ERROR forbidden insufficientPermissions "
        "SERVICE_ACCOUNT_ACCESS_DENIED",
        text=r"Policy update access denied|Required '[^']+' permission|does not have access to service account",
        statuses={403},
    ),
    # --- passing trouble --------------------------------------------------------------------------------------------
    Rule(_RETRY, NodeError, NETWORK_HINT, names="connectionError timeout"),
    Rule(
        _STOP, NodeError, "if a proxy has its own CA, name its certificates in REQUESTS_CA_BUNDLE", names="certificate"
    ),
    # Another zone may do better, and the same one hardly will at once.
    Rule(_ZONE, NodeError, _AGAIN, names="INTERNAL_ERROR"),
    Rule(
        _RETRY,
        NodeError,
        _AGAIN,
        names="RESOURCE_NOT_READY resourceNotReady RESOURCE_IN_USE_BY_ANOTHER_RESOURCE resourceInUseByAnotherResource",
        statuses={429, 500, 502, 503, 504},
    ),
    # --- the rest, by what kind of answer it was --------------------------------------------------------------------
    Rule(
        _STOP,
        UsageError,
        _SETTING,
        names="EXTERNAL_RESOURCE_NOT_FOUND INVALID_FIELD_VALUE INVALID_USAGE MISSING_REQUIRED_FIELD",
        statuses=range(400, 500),
    ),
    Rule(_STOP, NodeError, _AGAIN, text=".*"),
)
