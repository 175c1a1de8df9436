"""What is checked of the account: its name and its permissions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Finding, Once, failed, fine, setup_hint, unknown, warning
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.google.credentials import TOKEN_SECONDS, google_credentials
from hvdcloud.google.errors import ApiError, explained
from hvdcloud.google.http import Transport, api_errors
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from hvdcloud.config.gce import GceConfig

RETRY_SECONDS = 5.0
"""A service that fails for longer than that is worth knowing of; `up` is more patient."""

PERMISSIONS = (
    *(f"compute.instances.{verb}" for verb in ("create", "delete", "get", "list", "getGuestAttributes")),
    *(f"compute.instances.{verb}" for verb in ("getSerialPortOutput", "setLabels", "setMetadata", "setTags")),
    *("compute.instances.setServiceAccount", "compute.disks.create", "compute.disks.delete", "compute.disks.list"),
    *("compute.disks.setLabels", "compute.projects.get", "compute.regions.list", "compute.machineTypes.list"),
    *("compute.acceleratorTypes.list", "compute.zoneOperations.get", "compute.zoneOperations.list"),
    *("compute.globalOperations.get", "compute.globalOperations.list", "compute.subnetworks.list"),
    *("compute.subnetworks.use", "compute.subnetworks.useExternalIp"),
    *(f"compute.firewalls.{verb}" for verb in ("create", "delete", "list")),
    "compute.networks.updatePolicy",
)
ROLES = ("roles/compute.instanceAdmin.v1", "roles/compute.securityAdmin")
"""Predefined roles that have all of these (https://cloud.google.com/compute/docs/access/iam)."""


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
    def name(self) -> str:
        """The account in words."""
        return self.email or "this account"

    @property
    def member(self) -> str:
        """The account as IAM's policies write it."""
        if not self.email:
            return "user:YOUR-ADDRESS"
        return f"serviceAccount:{self.email}" if hasattr(self.credentials, "signer_email") else f"user:{self.email}"

    def client(self) -> ComputeClient:
        """The Compute API as the provider uses it."""
        return ComputeClient(project=self.project, credentials=self.credentials, retry_seconds=RETRY_SECONDS)

    def lacks(self, service: str, resource: str, permissions: Sequence[str]) -> list[str]:
        """Those of these permissions that we do not have on a resource. Raises ApiError: `service` does not say."""
        api = Transport(
            project=self.project, credentials=self.credentials, retry_seconds=RETRY_SECONDS, service=service
        )
        found = api.post(f"{resource}:testIamPermissions", {"permissions": list(permissions)})
        return [permission for permission in permissions if permission not in found.get("permissions", [])]


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
    return fine(f"{me.email or 'a Google account'} in project {me.project}")


def check_permissions(login: Login) -> Finding:
    """Whether we may make, watch and delete VMs and firewall rules."""
    try:
        lacking = login.lacks("cloudresourcemanager", f"projects/{login.project}", PERMISSIONS)
    except ApiError as error:
        return _not_told(error, f"see what {login.name} may do in {login.project}")
    if not lacking:
        return fine(f"all {len(PERMISSIONS)} that up, run and down need")
    bind = f"gcloud projects add-iam-policy-binding {login.project} --member={login.member} --role="
    return failed(
        f"{login.name} lacks {len(lacking)} of {len(PERMISSIONS)} permissions in {login.project}: {', '.join(lacking)}",
        hint=f"the project's owner can: {' && '.join(bind + role for role in ROLES)}",
        error=CredentialsError,
    )


def check_service_account(login: Login, account: str) -> Finding:
    """Whether we may make VMs that run as their service account: an e-mail address, or DEFAULT_ACCOUNT."""
    if account == DEFAULT_ACCOUNT:
        said = "which the organization may allow more than nodes need, or nothing at all"
        return warning(f"nodes run as the project's default service account, {said}", hint=setup_hint())
    act_as = "iam.serviceAccounts.actAs"
    try:
        lacking = login.lacks("iam", f"projects/-/serviceAccounts/{account}", [act_as])
    except ApiError as error:
        if error.status == 404:
            hint = f"{setup_hint()}; or correct gce.service_account"
            return failed(f"there is no service account {account}", hint=hint, error=UsageError)
        return _not_told(error, f"see whether VMs may run as {account}")
    if not lacking:
        return fine(f"nodes run as {account}")
    return failed(
        f"{login.name} may not make VMs that run as {account}: it lacks {act_as}",
        hint=f"the project's owner can: gcloud iam service-accounts add-iam-policy-binding {account} "
        f"--project={login.project} --member={login.member} --role=roles/iam.serviceAccountUser",
        error=CredentialsError,
    )


def _not_told(error: ApiError, doing: str) -> Finding:
    """We may run jobs without being allowed to ask this; any other trouble is one."""
    if error.status not in (400, 403):
        raise error.as_user_error(doing=doing) from error
    return unknown(f"cannot {doing}: {error.cause}", hint=error.hint, error=error.rule.error)
