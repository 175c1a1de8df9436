"""What Cloud Build's errors mean: whose fault it is, and what to type next. Data; the first line that holds decides."""

from __future__ import annotations

from functools import partial

from hvdcloud.errors import CapacityError, CredentialsError, ImageError, UsageError
from hvdcloud.google.error_catalogue import PROJECT_WIDE
from hvdcloud.google.error_rule import Action, Rule

_IAM = "https://console.cloud.google.com/iam-admin/iam?project={project}"
_AGAIN = "run hvdcloud build --remote again; https://status.cloud.google.com shows outages"
_ACCOUNT = "the account that builds run as (image.remote.service_account)"
_ROLES = "https://cloud.google.com/build/docs/iam-roles-permissions"

BUCKET_ROLE = f"give {_ACCOUNT} roles/storage.admin on the bucket: it reads the source and writes the log there"
PUSH_ROLE = f"give {_ACCOUNT} roles/artifactregistry.writer on image.repository, and see that the repository exists"
MAKE_ACCOUNT = "hvdcloud setup makes an account that may build, and sets image.remote.service_account"
NO_ACCOUNT = (
    "image.remote.service_account is not set: the build runs as the project's default account, which in many "
    f"organizations may do nothing; {MAKE_ACCOUNT}"
)
READ_LOG_ROLE = "roles/storage.objectAdmin on the bucket lets you send the source and read the log"

_DENIED = partial(Rule, action=Action.STOP, error=CredentialsError)

CATALOGUE: tuple[Rule, ...] = (
    _DENIED(
        text=r"constraints/gcp\.resourceLocations",
        cause="the organization's policy {constraint} does not allow builds in this region",
        hint="set image.remote.region to a region that the policy allows: "
        "gcloud org-policies describe {constraint} --effective --project={project}",
        source="https://github.com/GoogleCloudPlatform/esp-v2/issues/148",
    ),
    *PROJECT_WIDE,
    _DENIED(
        # Where the account may not read the source or write the log, the request itself is called invalid.
        text=r"could not resolve source|does not have access to (?:the|logs) bucket",
        hint=BUCKET_ROLE,
        source="https://cloud.google.com/build/docs/securing-builds/store-manage-build-logs",
    ),
    Rule(
        action=Action.STOP,
        error=CapacityError,
        text=r"due to quota restrictions, cannot run builds in this region",
        cause="project {project} may not build in this region",
        hint="set image.remote.region to one of "
        "https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects",
        source="https://cloud.google.com/build/docs/locations",
    ),
    _DENIED(
        text=r"act as service account|actAs|serviceAccountUser",
        hint=f"ask for roles/iam.serviceAccountUser on image.remote.service_account: {_IAM}",
        source="https://cloud.google.com/build/docs/securing-builds/configure-user-specified-service-accounts",
    ),
    _DENIED(
        statuses=frozenset({403}),
        hint=f"ask for roles/cloudbuild.builds.editor in project {{project}}: {_IAM}",
        source=_ROLES,
    ),
    Rule(
        action=Action.STOP,
        error=UsageError,
        statuses=frozenset({404}),
        hint="correct gce.project or image.remote.region; gcloud projects list shows your projects",
        source=_ROLES,
    ),
    Rule(
        action=Action.RETRY,
        error=ImageError,
        names=frozenset({"connectionError", "timeout"}),
        cause="Cloud Build cannot be reached: {message}",
        hint="check this machine's network and proxy, then run hvdcloud build --remote again",
        source="requests: ConnectionError, Timeout; google.auth: TransportError",
    ),
    Rule(
        action=Action.STOP,
        error=ImageError,
        names=frozenset({"certificate"}),
        cause="Cloud Build's certificate is not trusted: {message}",
        hint="if a proxy here has its own CA, name its certificates in REQUESTS_CA_BUNDLE",
        source="requests: SSLError",
    ),
    Rule(
        action=Action.STOP,
        error=UsageError,
        statuses=frozenset({400}),
        hint="correct image.remote in hvdcloud.yaml",
        source="https://cloud.google.com/apis/design/errors",
    ),
    Rule(
        action=Action.RETRY,
        error=ImageError,
        cause="Cloud Build answers {label}: {message}",
        hint=_AGAIN,
        source="https://cloud.google.com/apis/design/errors#error_retries",
    ),
)
