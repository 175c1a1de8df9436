"""What the Compute API's errors mean: code or reason → what to do, whose fault it is, what to type next. Data.

An answer with an HTTP error and an operation that ended with `error` speak different dialects (`quotaExceeded` and
`QUOTA_EXCEEDED`), so a line names both. The first line that holds decides; the last one always does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, UsageError

QUOTAS_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
"""Where a project sees its quotas and asks for more."""


class Action(str, Enum):
    """What the caller of a failed create does next."""

    RETRY = "retry"
    """The same request, a little later. After a failed *operation* under a new requestId: the old one would only give
    back the operation that failed."""
    NEXT_ZONE = "next zone"
    NEXT_REGION = "next region"
    """Every other zone of this region would fail in the same way."""
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the catalogue; it holds if everything that it names is found.

    `cause` and `hint` may use {label}, {message}, {project}, {metric}, {limit}, {permission}, {url}, {place}, {login},
    {api}, {service}.
    """

    action: Action
    error: type[HvdcloudError]
    names: frozenset[str] = frozenset()
    """Operation error codes, ErrorInfo reasons and the older `errors[].reason`."""
    text: str = ""
    """Regular expression that is searched in the message."""
    statuses: frozenset[int] = frozenset()
    cause: str = ""
    """Instead of the API's own message."""
    hint: str
    source: str
    """Where the meaning comes from."""

    def holds(self, names: frozenset[str], message: str, status: int | None) -> bool:
        """All criteria that this rule has are met."""
        return (
            (not self.names or bool(self.names & names))
            and (not self.text or re.search(self.text, message, re.IGNORECASE) is not None)
            and (not self.statuses or status in self.statuses)
        )


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IAM_PAGE = "https://console.cloud.google.com/iam-admin/iam?project={project}"
_MORE_QUOTA = f"ask for more {{metric}} at {QUOTAS_PAGE}, or use fewer nodes or GPUs"
_ELSEWHERE = "try again later, list other zones in gce.zones, change gce.spot, or take another GPU"
_SETTING = "correct the setting in hvdcloud.yaml; hvdcloud up --dry-run prints the request"
_AGAIN = "run the command again; https://status.cloud.google.com tells of outages"

_DISCOVERY = "compute.v1 discovery document"
_ERRORS_PAGE = "https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-creation-vms"
_RATES_PAGE = "https://cloud.google.com/compute/api-quota"
_STOCKOUT_PAGE = "https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation"
_ERROR_INFO = "https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto"
_SKYPILOT = "https://github.com/skypilot-org/skypilot sky/backends/cloud_vm_ray_backend.py"
_SLURM = "https://github.com/GoogleCloudPlatform/slurm-gcp scripts/resume.py"

CATALOGUE: tuple[Rule, ...] = (
    # --- project-wide: nothing would work anywhere ----------------------------------------------------------------
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        names=_names("SERVICE_DISABLED accessNotConfigured"),
        cause="the {api} API is switched off in project {project}",
        hint="gcloud services enable {service} --project={project}, or {url}; then wait a minute",
        source=_ERROR_INFO,
    ),
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        names=_names("BILLING_DISABLED billingNotEnabled"),
        cause="project {project} has no active billing account",
        hint="https://console.cloud.google.com/billing/linkedaccount?project={project}",
        source=_ERROR_INFO,
    ),
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        statuses=frozenset({401}),
        cause="the credentials were refused",
        hint="{login}",
        source="RFC 9110, 15.5.2",
    ),
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        text=r"Constraint \S+ violated",
        hint="a policy of your organization forbids this; ask its administrator, or change the setting that it names",
        source="https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints",
    ),
    # --- too many calls -------------------------------------------------------------------------------------------
    Rule(
        action=Action.RETRY,
        error=NodeError,
        names=_names("rateLimitExceeded userRateLimitExceeded RATE_LIMIT_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED"),
        cause="too many API calls per minute in project {project}",
        hint="wait a minute and run the command again",
        source=_RATES_PAGE,
    ),
    # --- quota ----------------------------------------------------------------------------------------------------
    Rule(
        action=Action.STOP,
        error=CapacityError,
        names=_names("QUOTA_EXCEEDED quotaExceeded"),
        text=r"_ALL_REGIONS\b|\bglobally\b",
        cause="quota {metric} of the whole project {project} is exceeded (limit {limit})",
        hint=_MORE_QUOTA,
        source=_SKYPILOT,
    ),
    Rule(
        action=Action.NEXT_REGION,
        error=CapacityError,
        names=_names("QUOTA_EXCEEDED quotaExceeded"),
        cause="quota {metric} in {place} is exceeded (limit {limit})",
        hint=_MORE_QUOTA,
        source=_SKYPILOT,
    ),
    # --- no machines left -----------------------------------------------------------------------------------------
    Rule(
        action=Action.NEXT_REGION,
        error=CapacityError,
        names=_names("REGION_RESOURCE_POOL_EXHAUSTED REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        cause="no capacity in {place}",
        hint=_ELSEWHERE,
        source=_SLURM,
    ),
    Rule(
        action=Action.NEXT_ZONE,
        error=CapacityError,
        names=_names(
            "ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS RESOURCE_POOL_EXHAUSTED "
            "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS GPU_STOCKOUT STOCKOUT insufficientCapacity resourcePoolExhausted"
        ),
        cause="no capacity in {place}",
        hint=_ELSEWHERE,
        source=_STOCKOUT_PAGE,
    ),
    Rule(
        action=Action.NEXT_REGION,
        error=CapacityError,
        names=_names("IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS"),
        cause="the subnetwork has no free addresses",
        hint="give the subnetwork a larger range, or name another one in gce.subnetwork",
        source="https://github.com/GoogleCloudPlatform/gcpdiag (lint rules on IP_SPACE_EXHAUSTED)",
    ),
    Rule(
        # Seen when a Spot VM is preempted while it is created.
        action=Action.NEXT_ZONE,
        error=CapacityError,
        names=_names("UNSUPPORTED_OPERATION"),
        hint=_ELSEWHERE,
        source=_SKYPILOT,
    ),
    Rule(
        # The VMs' own operations tell why.
        action=Action.NEXT_ZONE,
        error=CapacityError,
        names=_names("VM_MIN_COUNT_NOT_REACHED"),
        hint=_ELSEWHERE,
        source="https://github.com/skypilot-org/skypilot sky/provision/gcp/instance_utils.py",
    ),
    # --- something that the request names is not there ------------------------------------------------------------
    Rule(
        action=Action.STOP,
        error=UsageError,
        text=r"'projects/[^/']+' was not found",
        hint="correct gce.project; gcloud projects list shows yours",
        source=_ERRORS_PAGE,
    ),
    Rule(
        action=Action.STOP,
        error=UsageError,
        text=r"/(?:networks|images|serviceAccounts)/\S+ was not found",
        hint=_SETTING,
        source=_ERRORS_PAGE,
    ),
    Rule(
        action=Action.NEXT_REGION,
        error=UsageError,
        text=r"/subnetworks/\S+ was not found",
        hint=_SETTING,
        source=_ERRORS_PAGE,
    ),
    Rule(
        action=Action.NEXT_ZONE,
        error=UsageError,
        text=r"/(?:machineTypes|acceleratorTypes|diskTypes)/\S+ was not found|(?:machine|accelerator|disk) type .* "
        r"does not exist in zone|Location \S+ is not found or access is unauthorized",
        hint="list zones that have it in gce.zones, or leave gce.zones empty",
        source=_SKYPILOT,
    ),
    Rule(
        # https://github.com/skypilot-org/skypilot/issues/1797: after a few times it means no capacity.
        action=Action.RETRY,
        error=CapacityError,
        names=_names("RESOURCE_NOT_FOUND"),
        hint=_ELSEWHERE,
        source=_SKYPILOT,
    ),
    Rule(
        action=Action.STOP,
        error=UsageError,
        names=_names("alreadyExists RESOURCE_ALREADY_EXISTS"),
        hint="hvdcloud list shows whose it is; hvdcloud down deletes ours, else take another --name",
        source=_SLURM,
    ),
    # --- configuration and permissions ----------------------------------------------------------------------------
    Rule(
        action=Action.STOP,
        error=UsageError,
        text=r"Requested disk size cannot be smaller than the image size",
        hint="raise gce.disk_gb",
        source=_SKYPILOT,
    ),
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        names=_names("SERVICE_ACCOUNT_ACCESS_DENIED"),
        hint=f"ask for roles/iam.serviceAccountUser on that service account: {_IAM_PAGE}",
        source="https://github.com/gardener/gardener (its pattern of errors for want of authority)",
    ),
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        names=_names("IAM_PERMISSION_DENIED PERMISSION_DENIED PERMISSIONS_ERROR forbidden insufficientPermissions"),
        hint=f"ask for a role that holds {{permission}}: {_IAM_PAGE}",
        source=_ERRORS_PAGE,
    ),
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        text=r"Policy update access denied|Required '[^']+' permission",
        hint=f"ask for a role that holds {{permission}}: {_IAM_PAGE}",
        source=_SKYPILOT,
    ),
    # --- passing trouble ------------------------------------------------------------------------------------------
    Rule(
        action=Action.RETRY,
        error=NodeError,
        names=_names("RESOURCE_NOT_READY resourceNotReady"),
        hint=_AGAIN,
        source=_SKYPILOT,
    ),
    Rule(
        action=Action.RETRY,
        error=NodeError,
        names=_names("connectionError timeout"),
        cause="the {api} API cannot be reached: {message}",
        hint="check this machine's network and proxy, then run the command again",
        source="requests: ConnectionError, Timeout; google.auth: TransportError",
    ),
    Rule(
        action=Action.STOP,
        error=NodeError,
        names=_names("certificate"),
        cause="the {api} API's certificate is not trusted: {message}",
        hint="if a proxy here has its own CA, name its certificates in REQUESTS_CA_BUNDLE",
        source="requests: SSLError",
    ),
    Rule(
        # Another zone may do better, and the same one hardly will at once.
        action=Action.NEXT_ZONE,
        error=NodeError,
        names=_names("INTERNAL_ERROR"),
        hint=_AGAIN,
        source=_DISCOVERY,
    ),
    Rule(
        action=Action.RETRY,
        error=NodeError,
        statuses=frozenset({429, 500, 502, 503, 504}),
        cause="the {api} API answers {label}: {message}",
        hint=_AGAIN,
        source="https://cloud.google.com/apis/design/errors#error_retries",
    ),
    # --- the rest, by what kind of answer it was ------------------------------------------------------------------
    Rule(
        action=Action.STOP,
        error=CredentialsError,
        statuses=frozenset({403}),
        hint=f"ask for a role that holds {{permission}}: {_IAM_PAGE}",
        source="RFC 9110, 15.5.4",
    ),
    Rule(action=Action.STOP, error=UsageError, statuses=frozenset(range(400, 500)), hint=_SETTING, source=_ERRORS_PAGE),
    Rule(action=Action.STOP, error=NodeError, hint=_AGAIN, source=_DISCOVERY),
)
