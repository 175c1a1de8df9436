"""What is checked of the account: its name, its permissions, and the project with its billing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Finding, Once, failed, fine, unknown, warning
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.google.credentials import TOKEN_SECONDS, google_credentials
from hvdcloud.google.errors import ApiError, explained
from hvdcloud.google.http import BASE_PATH, Transport, api_errors
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from hvdcloud.config.gce import GceConfig

RETRY_SECONDS = 5.0
"""A service that fails for longer than that is worth knowing of; `up` is more patient."""

_COMPUTE = (
    *(f"instances.{verb}" for verb in ("create", "delete", "get", "list", "getGuestAttributes")),
    *(f"instances.{verb}" for verb in ("getSerialPortOutput", "setLabels", "setMetadata", "setServiceAccount")),
    *("instances.setTags", "disks.create", "disks.delete", "disks.list", "disks.setLabels"),
    *("projects.get", "regions.list", "zones.list", "machineTypes.list", "acceleratorTypes.list"),
    *("zoneOperations.get", "zoneOperations.list", "globalOperations.get", "globalOperations.list"),
    *("networks.get", "subnetworks.get", "subnetworks.list", "subnetworks.use"),
)
_FIREWALL = ("compute.firewalls.create", "compute.firewalls.delete", "compute.networks.updatePolicy")
ROLES: Mapping[str, tuple[str, ...]] = {
    "roles/compute.instanceAdmin.v1": tuple(f"compute.{each}" for each in _COMPUTE),
    "roles/compute.securityAdmin": ("compute.firewalls.list",),
}
"""Predefined roles, and what of each is needed (https://cloud.google.com/compute/docs/access/iam)."""
EXTERNAL_ADDRESS = "compute.subnetworks.useExternalIp"
"""Part of roles/compute.instanceAdmin.v1; needed where nodes have external addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The account and the project."""

    credentials: Any = field(repr=False)
    project: str

    @property
    def email(self) -> str:
        """The account's address; empty: the credentials do not say."""
        found = getattr(self.credentials, "service_account_email", "") or getattr(self.credentials, "account", "")
        # That of a VM is called so until it is asked.
        return "" if found in (None, "default") else str(found)

    @property
    def member(self) -> str:
        """The account as IAM's policies write it."""
        if not self.email:
            return "user:YOUR-ADDRESS"
        return f"serviceAccount:{self.email}" if hasattr(self.credentials, "signer_email") else f"user:{self.email}"

    def api(self, service: str, base_path: str = "/v1/") -> Transport:
        """One of Google's APIs."""
        return Transport(
            project=self.project,
            credentials=self.credentials,
            retry_seconds=RETRY_SECONDS,
            service=service,
            base_path=base_path,
        )

    def compute(self) -> Transport:
        """The Compute API, for what `ComputeClient` has no method for."""
        return self.api("compute", BASE_PATH)

    def client(self) -> ComputeClient:
        """The Compute API as the provider uses it."""
        return ComputeClient(project=self.project, credentials=self.credentials, retry_seconds=RETRY_SECONDS)

    def grant(self, roles: Sequence[str]) -> str:
        """What the project's owner has to type."""
        command = f"gcloud projects add-iam-policy-binding {self.project} --member={self.member} --role="
        return "the project's owner can: " + " && ".join(command + role for role in roles)


def log_in(config: GceConfig) -> Login:
    """This machine's account and the project. Raises CredentialsError: no credentials; UsageError: no project."""
    credentials, project = google_credentials(config.project)
    return Login(credentials=credentials, project=project)


def check_credentials(login: Once[Login]) -> Finding:
    """Whether there are any, and whether Google still gives a token for them."""
    from google.auth.transport.requests import Request

    me = login()
    try:
        with explained("get a token for the Google credentials"), api_errors(me.project, service="token"):
            me.credentials.refresh(partial(Request(), timeout=TOKEN_SECONDS))
    except CredentialsError as error:
        # What Google says to a token that begins in the future, or ended long ago.
        if "short-lived token" in error.message:
            error.hint = "set this machine's clock, for example: sudo timedatectl set-ntp true"
        raise
    expiry = getattr(me.credentials, "expiry", None)
    minutes = (expiry.replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)).total_seconds() / 60 if expiry else 0
    lasting = f"; a token lasts {minutes:.0f} min" if minutes > 0 else ""
    return fine(f"{me.email or 'a Google account'} in project {me.project}{lasting}")


def check_project(login: Login) -> Finding:
    """Whether the project exists."""
    try:
        found = login.api("cloudresourcemanager").read(f"projects/{login.project}")
    except ApiError as error:
        if error.status not in (403, 404):
            raise error.as_user_error(doing=f"look at project {login.project}") from error
        # Even where projects cannot be read, or that API is off, all that Compute Engine asks for may be allowed.
        try:
            login.client().get_project()
        except ApiError as second:
            if _switched_off(second):
                return unknown(f"not checked: {second.cause}")
            return failed(
                f"there is no project {login.project}, or {login.email or 'this account'} may not see it",
                hint="correct gce.project; gcloud projects list shows yours",
                error=CredentialsError,
            )
        return fine(f"{login.project} exists")
    state = str(found.get("lifecycleState", "ACTIVE"))
    if state != "ACTIVE":
        return failed(
            f"project {login.project} is being deleted ({state})",
            hint=f"gcloud projects undelete {login.project}, or set another gce.project",
            error=UsageError,
        )
    return fine(f"{login.project} (number {found.get('projectNumber', 'unknown')}) is active")


def check_billing(login: Login) -> Finding:
    """Whether the project has a billing account."""
    try:
        found = login.api("cloudbilling").read(f"projects/{login.project}/billingInfo")
    except ApiError as error:
        return _not_told(error, f"see whether project {login.project} has a billing account")
    if not found.get("billingEnabled", False):
        return failed(
            f"project {login.project} has no active billing account",
            hint=f"https://console.cloud.google.com/billing/linkedaccount?project={login.project}",
            error=CredentialsError,
        )
    account = str(found.get("billingAccountName", "")).rpartition("/")[2]
    return fine(f"{account or 'an account'} pays for {login.project}")


def check_apis(login: Login, services: Sequence[str]) -> Finding:
    """Whether the APIs (`compute.googleapis.com`, …) are on that this configuration needs."""
    parent = f"projects/{login.project}"
    names = [f"{parent}/services/{service}" for service in services]
    try:
        found = login.api("serviceusage").read(f"{parent}/services:batchGet", {"names": names})
    except ApiError as error:
        return _not_told(error, f"see which APIs are on in {login.project}")
    enabled = [service for service in found.get("services", []) if service.get("state") == "ENABLED"]
    on = {str(service["name"]).rpartition("/")[2] for service in enabled}
    off = [service for service in services if service not in on]
    if off:
        return failed(
            f"switched off in project {login.project}: {', '.join(off)}",
            hint=f"gcloud services enable {' '.join(off)} --project={login.project}; then wait a minute",
            error=CredentialsError,
        )
    return fine(f"{', '.join(service.partition('.')[0] for service in services)} are on")


def check_permissions(login: Login, *, external_address: bool) -> Finding:
    """Whether we may make, watch and delete VMs."""
    wanted = {permission: role for role, permissions in ROLES.items() for permission in permissions}
    if external_address:
        wanted[EXTERNAL_ADDRESS] = "roles/compute.instanceAdmin.v1"
    try:
        lacking = missing(login, list(wanted))
    except ApiError as error:
        return _not_told(error, f"see what {login.email or 'this account'} may do in {login.project}")
    if lacking:
        roles = list(dict.fromkeys(wanted[permission] for permission in lacking))
        return failed(
            f"{login.email or 'this account'} lacks {len(lacking)} of {len(wanted)} permissions in {login.project}: "
            + ", ".join(lacking),
            hint=login.grant(roles),
            error=CredentialsError,
        )
    return fine(f"all {len(wanted)} that up, run and down need")


def check_firewall_rights(login: Login) -> Finding | None:
    """Whether we may add firewall rules; None: yes, or it is not known."""
    try:
        lacking = missing(login, _FIREWALL)
    except ApiError:
        return None
    if not lacking:
        return None
    return failed(
        f"`up` has to add firewall rules, and {login.email or 'this account'} lacks {', '.join(lacking)}",
        hint=f"hvdcloud setup makes rules that stay; or {login.grant(['roles/compute.securityAdmin'])}",
        error=CredentialsError,
    )


def missing(login: Login, permissions: Sequence[str]) -> list[str]:
    """Those that we do not have in the project. Raises ApiError: Resource Manager does not answer."""
    body = {"permissions": list(permissions)}
    found = login.api("cloudresourcemanager").post(f"projects/{login.project}:testIamPermissions", body)
    return [permission for permission in permissions if permission not in found.get("permissions", [])]


def check_service_account(login: Login, *, account: str, setup: str) -> Finding:
    """Whether we may make VMs that run as their service account.

    Args:
        account: e-mail address, or DEFAULT_ACCOUNT.
        setup: how to get one.
    """
    email = account if account != DEFAULT_ACCOUNT else default_account(login)
    if not email:
        return failed(
            f"project {login.project} has no default service account (gce.service_account: {DEFAULT_ACCOUNT})",
            hint=setup,
            error=UsageError,
        )
    act_as = "iam.serviceAccounts.actAs"
    path = f"projects/-/serviceAccounts/{email}:testIamPermissions"
    try:
        found = login.api("iam").post(path, {"permissions": [act_as]})
    except ApiError as error:
        if error.status == 404:
            hint = f"{setup}; or correct gce.service_account"
            return failed(f"there is no service account {email}", hint=hint, error=UsageError)
        return _not_told(error, f"see whether VMs may run as {email}")
    if act_as not in found.get("permissions", []):
        return failed(
            f"{login.email or 'this account'} may not make VMs that run as {email}: it lacks {act_as}",
            hint=f"the project's owner can: gcloud iam service-accounts add-iam-policy-binding {email} "
            f"--project={login.project} --member={login.member} --role=roles/iam.serviceAccountUser",
            error=CredentialsError,
        )
    if account == DEFAULT_ACCOUNT:
        said = "which the organization may allow more than nodes need, or nothing at all"
        return warning(f"nodes run as {email}, the project's default, {said}", hint=setup)
    return fine(f"nodes run as {email}")


def default_account(login: Login) -> str:
    """The project's default service account; "": there is none."""
    with explained(f"find the default service account of {login.project}"):
        return str(login.client().get_project().get("defaultServiceAccount", ""))


def _switched_off(error: ApiError) -> bool:
    return bool({error.code, error.reason} & {"SERVICE_DISABLED", "accessNotConfigured"})


def _not_told(error: ApiError, doing: str) -> Finding:
    """We may run jobs without being allowed to ask this; any other trouble is one."""
    if error.status not in (400, 403):
        raise error.as_user_error(doing=doing) from error
    return unknown(f"cannot {doing}: {error.cause}", hint=error.hint, error=error.rule.error)
