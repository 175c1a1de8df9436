"""What the Compute API's errors mean: code or reason → what to do, whose fault it is, what to type next. Data.

An answer with an HTTP error and an operation that ended with `error` speak different dialects (`quotaExceeded` and
`QUOTA_EXCEEDED`), so a line names both. The first line that holds decides; the last one always does.
"""

from __future__ import annotations

from hvdcloud.errors import CapacityError, CredentialsError, NodeError, UsageError
from hvdcloud.google.credentials import NETWORK_HINT
from hvdcloud.google.error_rule import Action, Rule, when

QUOTAS_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
"""Where a project sees its quotas and asks for more."""

OTHER_CONSUMER = "OTHER_CONSUMER"
"""Ours, beside Google's names: an API is switched off, but in another project than the one that is worked in."""

NEW_ACCOUNT_SECONDS = 120.0
"""After which a service account that was just made is known everywhere; seen: 10 s to a minute."""

_IAM_PAGE = "https://console.cloud.google.com/iam-admin/iam?project={owner}"
ELSEWHERE = "list other zones in gce.zones, change gce.spot, or take another GPU"
"""Where there is no capacity."""
_MORE_QUOTA = f"ask for more {{metric}} at {QUOTAS_PAGE}, or use fewer nodes or GPUs"
_ELSEWHERE = f"try again later, {ELSEWHERE}"
_SETTING = "correct the setting in hvdcloud.yaml; hvdcloud up --dry-run --json prints the request"
_AGAIN = "run the command again; https://status.cloud.google.com shows outages"

_DISCOVERY = "compute.v1 discovery document"
_ERRORS_PAGE = "https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-creation-vms"
_RATES_PAGE = "https://cloud.google.com/compute/api-quota"
_STOCKOUT_PAGE = "https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation"
_ERROR_INFO = "https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto"
_SKYPILOT = "https://github.com/skypilot-org/skypilot sky/backends/cloud_vm_ray_backend.py"
_SLURM = "https://github.com/GoogleCloudPlatform/slurm-gcp scripts/resume.py"
_POLICIES = "https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints"
_QUOTA_PROJECT = "gcloud auth application-default set-quota-project {project}"
_POLICY = "gcloud org-policies describe {constraint} --effective --project={project}"
_EXCEPTION = f"ask the organization's administrator for an exception; {_POLICY} shows what is allowed"
_FORBIDS = "the organization's policy {constraint} forbids it"

PROJECT_WIDE: tuple[Rule, ...] = (
    when(
        Action.STOP,
        CredentialsError,
        names=OTHER_CONSUMER,
        source="https://cloud.google.com/docs/authentication/troubleshoot-adc#user-creds-client-based",
    ).says(
        _QUOTA_PROJECT,
        cause="the {api} API is switched off in project {consumer}, which this login counts its calls against",
    ),
    when(
        Action.STOP, CredentialsError, text=r"USER_PROJECT_DENIED|serviceusage\.services\.use\b", source=_ERROR_INFO
    ).says(
        f"ask for roles/serviceusage.serviceUsageConsumer in project {{consumer}}, or {_QUOTA_PROJECT}",
        cause="this login may not count its calls against project {consumer}",
    ),
    when(Action.STOP, CredentialsError, names="SERVICE_DISABLED accessNotConfigured", source=_ERROR_INFO).says(
        "gcloud services enable {service} --project={project}, or {url}; then wait a minute",
        cause="the {api} API is switched off in project {project}",
    ),
    when(
        Action.STOP,
        CredentialsError,
        text=r"BILLING_DISABLED|billingNotEnabled|accountDisabled|UREQ_PROJECT_BILLING|billing (?:is )?disabled|"
        r"billing must be enabled|requires billing to be enabled",
        source=_ERROR_INFO,
    ).says(
        "https://console.cloud.google.com/billing/linkedaccount?project={project}",
        cause="project {project} has no active billing account",
    ),
    when(Action.STOP, CredentialsError, names="CONSUMER_SUSPENDED GCP_SUSPENDED", source=_ERROR_INFO).says(
        "https://console.cloud.google.com/home/dashboard?project={consumer} shows why, and how to appeal",
        cause="Google has suspended project {consumer}",
    ),
    when(Action.STOP, UsageError, names="CONSUMER_INVALID RESOURCE_PROJECT_INVALID", source=_ERROR_INFO).says(
        "correct gce.project; gcloud projects list shows yours"
    ),
    when(
        Action.STOP,
        CredentialsError,
        text=r"ACCESS_TOKEN_SCOPE_INSUFFICIENT|insufficient authentication scopes",
        source=_ERROR_INFO,
    ).says("{login}", cause="the credentials do not cover Google Cloud (scope cloud-platform)"),
    when(Action.STOP, CredentialsError, statuses={401}, source="RFC 9110, 15.5.2").says(
        "{login}", cause="the credentials were refused"
    ),
    # An answer calls it `conditionNotMet`, an operation CONDITION_NOT_MET, as they call other conditions.
    when(
        Action.NEXT_REGION,
        CredentialsError,
        text=r"constraints/gcp\.resourceLocations|LOCATION_ORG_POLICY_VIOLATED",
        source="https://cloud.google.com/resource-manager/docs/organization-policy/defining-locations",
    ).says(
        f"list zones that the policy allows in gce.zones: {_POLICY}",
        cause="the organization's policy {constraint} does not allow {place}",
    ),
    when(
        Action.STOP, CredentialsError, text=r"constraints/compute\.(?:managed\.)?vmExternalIpAccess", source=_POLICIES
    ).says(
        "set gce.ssh.source: iap: such VMs have no external address",
        cause="the organization's policy {constraint} forbids external addresses",
    ),
    # Which status guest attributes are refused with: https://github.com/GoogleCloudPlatform/iap-desktop (412).
    when(
        Action.STOP,
        CredentialsError,
        text=r"disableGuestAttributesAccess|guest attributes",
        statuses={403, 412},
        source="https://cloud.google.com/compute/docs/metadata/manage-guest-attributes",
    ).says(
        "ask the organization's administrator for an exception; gcloud org-policies describe "
        "compute.disableGuestAttributesAccess --effective --project={project} shows what is allowed",
        cause="the organization's policy compute.disableGuestAttributesAccess forbids guest attributes, by which nodes "
        "tell that they are ready",
    ),
    when(
        Action.STOP,
        CredentialsError,
        text=r"constraints/compute\.(?:managed\.)?disableSerialPortLogging",
        without_metadata="serial-port-logging-enable",
        source=_POLICIES,
    ).says(_EXCEPTION, cause=_FORBIDS),
    when(
        Action.STOP,
        CredentialsError,
        text=r"Constraint \S+ violated|violates constraint|denied by (?:custom )?org polic",
        source=_POLICIES,
    ).says(_EXCEPTION, cause=_FORBIDS),
    when(
        Action.STOP, CredentialsError, names="SECURITY_POLICY_VIOLATED ORG_RESTRICTION_VIOLATION", source=_ERROR_INFO
    ).says(
        "work from inside the organization's network, or give its administrator the identifier in the message",
        cause="the organization forbids the {api} API from here (VPC Service Controls): {message}",
    ),
)
"""What every API of Google's answers in the same way, and what no other zone would change."""

CATALOGUE: tuple[Rule, ...] = (
    *PROJECT_WIDE,
    # --- too many calls -------------------------------------------------------------------------------------------
    when(
        Action.RETRY,
        NodeError,
        text=r"rateLimitExceeded|RATE_LIMIT_EXCEEDED|RESOURCE_OPERATION_RATE_EXCEEDED|CONCURRENT_OPERATIONS|"
        r"Rate Limit Exceeded|Operation rate exceeded|limit '[^']+ per (?:minute|second|\d+ seconds)",
        source=_RATES_PAGE,
    ).says("wait a minute and run the command again", cause="too many API calls per minute in project {project}"),
    # --- a request that no zone takes, whatever the code: UNSUPPORTED_OPERATION and stockouts have been seen ------
    when(
        Action.STOP,
        UsageError,
        text=r"not compatible (?:for|with)|\bnot supported\b(?! in (?:the )?zone)|\b(?:does|do) not support\b|"
        r"without accelerator\(s\)",
        source="https://github.com/scylladb/scylla-cluster-tests sdcm/provision/gce/capacity_errors.py",
    ).says("change gce.machine_type, gce.gpu or gce.spot: they do not go together"),
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
        text=r"External IP resource pool is exhausted",
        source="https://github.com/GoogleCloudPlatform/PerfKitBenchmarker tests/gce_virtual_machine_test.py",
    ).says(_ELSEWHERE, cause="no external addresses are left in {place}"),
    when(
        Action.NEXT_ZONE,
        CapacityError,
        text=r"\bPREEMPTED\b|failed to start due to preemption",
        source="https://github.com/hashicorp/packer/issues/9133",
    ).says(_ELSEWHERE, cause="a Spot VM was preempted before it ran"),
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
    # https://github.com/ubicloud/ubicloud prog/vm/gcp/nexus.rb: a new account is unknown to Compute Engine at first.
    when(
        Action.RETRY,
        UsageError,
        text=r"of type 'serviceAccount' was not found|/serviceAccounts/\S+ was not found",
        patience=NEW_ACCOUNT_SECONDS,
        source=_ERRORS_PAGE,
    ).says(
        "hvdcloud setup makes the account, which Compute Engine knows some minutes later; else correct "
        "gce.service_account",
        cause="Compute Engine does not know the service account {account}",
    ),
    when(
        Action.STOP,
        UsageError,
        text=r"cross.project referenc",
        source="https://github.com/terraform-google-modules/terraform-google-bastion-host/issues/5",
    ).says(
        "the network belongs to another project: its administrator attaches project {project} to it (Shared VPC) and "
        "makes the firewall rules there"
    ),
    when(
        Action.NEXT_REGION,
        UsageError,
        text=r"/subnetworks/\S+ was not found|No default subnetwork was found|subnetwork resource cannot be found",
        source=_ERRORS_PAGE,
    ).says("name a subnetwork of this region in gce.subnetwork, or list zones of its region in gce.zones"),
    when(
        Action.STOP,
        UsageError,
        text=r"/networks/\S+ was not found|Network '\S+' was not found|network resource cannot be found|"
        r"Subnetwork (?:should be|was not) specified",
        source=_ERRORS_PAGE,
    ).says("correct gce.network and gce.subnetwork, or hvdcloud setup makes both"),
    when(
        Action.STOP,
        UsageError,
        text=r"/image(?:s|FamilyViews)/\S+ was not found|image resource cannot be found",
        source=_ERRORS_PAGE,
    ).says("change gce.vm_image, or install a newer hvdcloud: Google has withdrawn this image"),
    when(
        Action.NEXT_ZONE,
        UsageError,
        text=(
            r"/(?:machineTypes|acceleratorTypes|diskTypes)/\S+ was not found|(?:machine|accelerator|disk) type .* "
            r"does not exist in zone|Location \S+ is not found or access is unauthorized|LOCATION_POLICY_VIOLATED"
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
        Action.STOP,
        UsageError,
        names="EXTERNAL_RESOURCE_NOT_FOUND INVALID_FIELD_VALUE INVALID_USAGE MISSING_REQUIRED_FIELD",
        source="https://docs.cloud.google.com/compute/docs/reference/rest/2026-09-01/errors",
    ).says(_SETTING),
    when(
        Action.STOP,
        UsageError,
        text=r"protected against deletion",
        source="https://github.com/hashicorp/terraform-provider-google/pull/1211",
    ).says("gcloud compute instances update NAME --no-deletion-protection, then the command again"),
    when(
        Action.STOP,
        UsageError,
        text=r"fingerprint does not match",
        source="https://github.com/cloudfoundry/bosh-google-cpi-release/issues/159",
    ).says("another command changed it at the same moment: run the command again"),
    when(
        Action.STOP, UsageError, text=r"Requested disk size cannot be smaller than the image size", source=_SKYPILOT
    ).says("raise gce.disk_gb"),
    when(
        Action.STOP,
        CredentialsError,
        text=r"SERVICE_ACCOUNT_ACCESS_DENIED|does not have access to service account|serviceAccounts\.actAs",
        source="https://github.com/gardener/gardener (its pattern of errors for lack of authority)",
    ).says(f"ask for roles/iam.serviceAccountUser on {{account}}: {_IAM_PAGE}"),
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
    when(
        Action.RETRY,
        NodeError,
        names=(
            "RESOURCE_NOT_READY resourceNotReady RESOURCE_IN_USE_BY_ANOTHER_RESOURCE resourceInUseByAnotherResource"
        ),
        source=_SKYPILOT,
    ).says(_AGAIN),
    when(
        Action.RETRY,
        NodeError,
        names="connectionError timeout",
        source="requests: ConnectionError, Timeout; google.auth: TransportError",
    ).says(
        NETWORK_HINT,
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
