"""What the Compute API's errors mean: code or reason → what to do, whose fault it is, what to type next. Data.

An answer with an HTTP error and an operation that ended with `error` speak different dialects (`quotaExceeded` and
`QUOTA_EXCEEDED`), so a line names both. The first line that holds decides; the last one always does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    hint: str = ""
    source: str
    """Where the meaning comes from."""

    def holds(self, names: frozenset[str], message: str, status: int | None) -> bool:
        """All criteria that this rule has are met."""
        return (
            (not self.names or bool(self.names & names))
            and (not self.text or re.search(self.text, message, re.IGNORECASE) is not None)
            and (not self.statuses or status in self.statuses)
        )

    def says(self, hint: str, *, cause: str = "") -> Rule:
        """The same rule with these words for the user."""
        return replace(self, hint=hint, cause=cause)


def when(
    action: Action,
    error: type[HvdcloudError],
    *,
    names: str = "",
    text: str = "",
    statuses: Iterable[int] = (),
    source: str,
) -> Rule:
    """A rule without its words; `names` are separated by spaces."""
    found, answers = frozenset(names.split()), frozenset(statuses)
    return Rule(action=action, error=error, names=found, text=text, statuses=answers, source=source)


_IAM_PAGE = "https://console.cloud.google.com/iam-admin/iam?project={project}"
_MORE_QUOTA = f"ask for more {{metric}} at {QUOTAS_PAGE}, or use fewer nodes or GPUs"
_ELSEWHERE = "try again later, list other zones in gce.zones, change gce.spot, or take another GPU"
_SETTING = "correct the setting in hvdcloud.yaml; hvdcloud up --dry-run --json prints the request"
_AGAIN = "run the command again; https://status.cloud.google.com shows outages"

_DISCOVERY = "compute.v1 discovery document"
_ERRORS_PAGE = "https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-creation-vms"
_RATES_PAGE = "https://cloud.google.com/compute/api-quota"
_STOCKOUT_PAGE = "https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation"
_ERROR_INFO = "https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto"
_SKYPILOT = "https://github.com/skypilot-org/skypilot sky/backends/cloud_vm_ray_backend.py"
_SLURM = "https://github.com/GoogleCloudPlatform/slurm-gcp scripts/resume.py"

CATALOGUE: tuple[Rule, ...] = (
    # --- project-wide: nothing would work anywhere ----------------------------------------------------------------
    when(Action.STOP, CredentialsError, names="SERVICE_DISABLED accessNotConfigured", source=_ERROR_INFO).says(
        "gcloud services enable {service} --project={project}, or {url}; then wait a minute",
        cause="the {api} API is switched off in project {project}",
    ),
    when(Action.STOP, CredentialsError, names="BILLING_DISABLED billingNotEnabled", source=_ERROR_INFO).says(
        "https://console.cloud.google.com/billing/linkedaccount?project={project}",
        cause="project {project} has no active billing account",
    ),
    when(Action.STOP, CredentialsError, statuses={401}, source="RFC 9110, 15.5.2").says(
        "{login}", cause="the credentials were refused"
    ),
    when(
        Action.STOP,
        CredentialsError,
        text=r"Constraint \S+ violated",
        source="https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints",
    ).says("a policy of your organization forbids this; ask its administrator, or change the setting that it names"),
    # --- too many calls -------------------------------------------------------------------------------------------
    when(
        Action.RETRY,
        NodeError,
        names="rateLimitExceeded userRateLimitExceeded RATE_LIMIT_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED",
        source=_RATES_PAGE,
    ).says("wait a minute and run the command again", cause="too many API calls per minute in project {project}"),
    # --- quota ----------------------------------------------------------------------------------------------------
    when(
        Action.STOP,
        CapacityError,
        names="QUOTA_EXCEEDED quotaExceeded",
        text=r"_ALL_REGIONS\b|\bglobally\b",
        source=_SKYPILOT,
    ).says(_MORE_QUOTA, cause="quota {metric} of the whole project {project} is exceeded (limit {limit})"),
    when(Action.NEXT_REGION, CapacityError, names="QUOTA_EXCEEDED quotaExceeded", source=_SKYPILOT).says(
        _MORE_QUOTA, cause="quota {metric} in {place} is exceeded (limit {limit})"
    ),
    # --- no machines left -----------------------------------------------------------------------------------------
    when(
        Action.NEXT_REGION,
        CapacityError,
        names="REGION_RESOURCE_POOL_EXHAUSTED REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        source=_SLURM,
    ).says(_ELSEWHERE, cause="no capacity in {place}"),
    when(
        Action.NEXT_ZONE,
        CapacityError,
        names=(
            "ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS RESOURCE_POOL_EXHAUSTED "
            "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS GPU_STOCKOUT STOCKOUT insufficientCapacity resourcePoolExhausted"
        ),
        source=_STOCKOUT_PAGE,
    ).says(_ELSEWHERE, cause="no capacity in {place}"),
    when(
        Action.NEXT_REGION,
        CapacityError,
        names="IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS",
        source="https://github.com/GoogleCloudPlatform/gcpdiag (lint rules on IP_SPACE_EXHAUSTED)",
    ).says(
        "give the subnetwork a larger range, or name another one in gce.subnetwork",
        cause="the subnetwork has no free addresses",
    ),
    # Seen when a Spot VM is preempted while it is created.
    when(Action.NEXT_ZONE, CapacityError, names="UNSUPPORTED_OPERATION", source=_SKYPILOT).says(_ELSEWHERE),
    # The VMs' own operations tell why.
    when(
        Action.NEXT_ZONE,
        CapacityError,
        names="VM_MIN_COUNT_NOT_REACHED",
        source="https://github.com/skypilot-org/skypilot sky/provision/gcp/instance_utils.py",
    ).says(_ELSEWHERE),
    # --- something that the request names is not there ------------------------------------------------------------
    when(Action.STOP, UsageError, text=r"'projects/[^/']+' was not found", source=_ERRORS_PAGE).says(
        "correct gce.project; gcloud projects list shows yours"
    ),
    when(
        Action.STOP, UsageError, text=r"/(?:networks|images|serviceAccounts)/\S+ was not found", source=_ERRORS_PAGE
    ).says(_SETTING),
    when(Action.NEXT_REGION, UsageError, text=r"/subnetworks/\S+ was not found", source=_ERRORS_PAGE).says(_SETTING),
    when(
        Action.NEXT_ZONE,
        UsageError,
        text=(
            r"/(?:machineTypes|acceleratorTypes|diskTypes)/\S+ was not found|(?:machine|accelerator|disk) type .* "
            r"does not exist in zone|Location \S+ is not found or access is unauthorized"
        ),
        source=_SKYPILOT,
    ).says("list zones that have it in gce.zones, or leave gce.zones empty"),
    # https://github.com/skypilot-org/skypilot/issues/1797: after a few times it means no capacity.
    when(Action.RETRY, CapacityError, names="RESOURCE_NOT_FOUND", source=_SKYPILOT).says(_ELSEWHERE),
    when(Action.STOP, UsageError, names="alreadyExists RESOURCE_ALREADY_EXISTS", source=_SLURM).says(
        "hvdcloud list shows whose it is; hvdcloud down deletes ours, else take another --name"
    ),
    # --- configuration and permissions ----------------------------------------------------------------------------
    when(
        Action.STOP, UsageError, text=r"Requested disk size cannot be smaller than the image size", source=_SKYPILOT
    ).says("raise gce.disk_gb"),
    when(
        Action.STOP,
        CredentialsError,
        names="SERVICE_ACCOUNT_ACCESS_DENIED",
        source="https://github.com/gardener/gardener (its pattern of errors for lack of authority)",
    ).says(f"ask for roles/iam.serviceAccountUser on that service account: {_IAM_PAGE}"),
    when(
        Action.STOP,
        CredentialsError,
        names="IAM_PERMISSION_DENIED PERMISSION_DENIED PERMISSIONS_ERROR forbidden insufficientPermissions",
        source=_ERRORS_PAGE,
    ).says(f"ask for a role that holds {{permission}}: {_IAM_PAGE}"),
    when(
        Action.STOP, CredentialsError, text=r"Policy update access denied|Required '[^']+' permission", source=_SKYPILOT
    ).says(f"ask for a role that holds {{permission}}: {_IAM_PAGE}"),
    # --- passing trouble ------------------------------------------------------------------------------------------
    when(Action.RETRY, NodeError, names="RESOURCE_NOT_READY resourceNotReady", source=_SKYPILOT).says(_AGAIN),
    when(
        Action.RETRY,
        NodeError,
        names="connectionError timeout",
        source="requests: ConnectionError, Timeout; google.auth: TransportError",
    ).says(
        "check this machine's network and proxy, then run the command again",
        cause="the {api} API cannot be reached: {message}",
    ),
    when(Action.STOP, NodeError, names="certificate", source="requests: SSLError").says(
        "if a proxy here has its own CA, name its certificates in REQUESTS_CA_BUNDLE",
        cause="the {api} API's certificate is not trusted: {message}",
    ),
    # Another zone may do better, and the same one hardly will at once.
    when(Action.NEXT_ZONE, NodeError, names="INTERNAL_ERROR", source=_DISCOVERY).says(_AGAIN),
    when(
        Action.RETRY,
        NodeError,
        statuses={429, 500, 502, 503, 504},
        source="https://cloud.google.com/apis/design/errors#error_retries",
    ).says(_AGAIN, cause="the {api} API answers {label}: {message}"),
    # --- the rest, by what kind of answer it was ------------------------------------------------------------------
    when(Action.STOP, CredentialsError, statuses={403}, source="RFC 9110, 15.5.4").says(
        f"ask for a role that holds {{permission}}: {_IAM_PAGE}"
    ),
    when(Action.STOP, UsageError, statuses=range(400, 500), source=_ERRORS_PAGE).says(_SETTING),
    when(Action.STOP, NodeError, source=_DISCOVERY).says(_AGAIN),
)
