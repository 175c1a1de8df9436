"""What is checked of the account: its name, its project and its permissions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Finding, Once, failed, fine, unknown, warning
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

_COMPUTE = (
    *(f"instances.{verb}" for verb in ("create", "delete", "get", "list", "getGuestAttributes")),
    *(f"instances.{verb}" for verb in ("getSerialPortOutput", "setLabels", "setMetadata", "setServiceAccount")),
    *("instances.setTags", "disks.create", "disks.delete", "disks.list", "disks.setLabels"),
    *("projects.get", "regions.list", "machineTypes.list", "acceleratorTypes.list"),
    *("zoneOperations.get", "zoneOperations.list", "globalOperations.get", "globalOperations.list"),
    *("networks.get", "subnetworks.list", "subnetworks.use"),
)
FIREWALL = ("compute.firewalls.create", "compute.firewalls.delete", "compute.networks.updatePolicy")
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
    return fine(f"{me.email or 'a Google account'} in project {me.project}")


def check_project(login: Login) -> Finding:
    """Whether Compute Engine works for the project: it exists, somebody pays for it, and the API is on."""
    try:
        login.client().get_project()
    except ApiError as error:
        if not error.permission and error.status != 404:
            raise error.as_user_error(doing=f"look at project {login.project}") from error
        return failed(
            f"there is no project {login.project}, or {login.name} may not see it",
            hint="correct gce.project; gcloud projects list shows yours",
            error=CredentialsError,
        )
    return fine(f"Compute Engine works in {login.project}")


def check_permissions(login: Login, *, external_address: bool) -> Finding:
    """Whether we may make, watch and delete VMs."""
    wanted = {permission: role for role, permissions in ROLES.items() for permission in permissions}
    if external_address:
        wanted[EXTERNAL_ADDRESS] = "roles/compute.instanceAdmin.v1"
    try:
        lacking = login.lacks("cloudresourcemanager", f"projects/{login.project}", list(wanted))
    except ApiError as error:
        return _not_told(error, f"see what {login.name} may do in {login.project}")
    if lacking:
        return failed(
            f"{login.name} lacks {len(lacking)} of {len(wanted)} permissions in {login.project}: {', '.join(lacking)}",
            hint=login.grant(list(dict.fromkeys(wanted[permission] for permission in lacking))),
            error=CredentialsError,
        )
    return fine(f"all {len(wanted)} that up, run and down need")


def check_firewall_rights(login: Login) -> Finding:
    """Whether we may add the cluster's firewall rules; where that is not told, `up` finds out."""
    lacking: list[str] = []
    with contextlib.suppress(ApiError):
        lacking = login.lacks("cloudresourcemanager", f"projects/{login.project}", FIREWALL)
    if not lacking:
        return fine("`up` adds two rules, and `down` deletes them")
    return failed(
        f"`up` has to add firewall rules, and {login.name} lacks {', '.join(lacking)}",
        hint=login.grant(["roles/compute.securityAdmin"]),
        error=CredentialsError,
    )


def check_service_account(login: Login, *, account: str, setup: str) -> Finding:
    """Whether we may make VMs that run as their service account.

    Args:
        account: e-mail address, or DEFAULT_ACCOUNT.
        setup: how to get one.
    """
    email, act_as = account, "iam.serviceAccounts.actAs"
    if account == DEFAULT_ACCOUNT:
        with explained(f"find the default service account of {login.project}"):
            email = str(login.client().get_project().get("defaultServiceAccount", ""))
        if not email:
            message = f"project {login.project} has no default service account (gce.service_account: {DEFAULT_ACCOUNT})"
            return failed(message, hint=setup, error=UsageError)
    try:
        lacking = login.lacks("iam", f"projects/-/serviceAccounts/{email}", [act_as])
    except ApiError as error:
        if error.status == 404:
            hint = f"{setup}; or correct gce.service_account"
            return failed(f"there is no service account {email}", hint=hint, error=UsageError)
        return _not_told(error, f"see whether VMs may run as {email}")
    if lacking:
        return failed(
            f"{login.name} may not make VMs that run as {email}: it lacks {act_as}",
            hint=f"the project's owner can: gcloud iam service-accounts add-iam-policy-binding {email} "
            f"--project={login.project} --member={login.member} --role=roles/iam.serviceAccountUser",
            error=CredentialsError,
        )
    if account == DEFAULT_ACCOUNT:
        said = "which the organization may allow more than nodes need, or nothing at all"
        return warning(f"nodes run as {email}, the project's default, {said}", hint=setup)
    return fine(f"nodes run as {email}")


def _not_told(error: ApiError, doing: str) -> Finding:
    """We may run jobs without being allowed to ask this; any other trouble is one."""
    if error.status not in (400, 403):
        raise error.as_user_error(doing=doing) from error
    return unknown(f"cannot {doing}: {error.cause}", hint=error.hint, error=error.rule.error)
