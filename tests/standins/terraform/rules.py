"""What Google decides, and what it refuses: by kind of resource."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

Resources = Mapping[str, Mapping[str, Mapping[str, Any]]]

COMPUTE = "https://www.googleapis.com/compute/v1/"

# As the provider calls them in its messages.
WORDS = {
    "google_artifact_registry_repository": "Repository",
    "google_artifact_registry_repository_iam_member": "IAM Member",
    "google_billing_budget": "Budget",
    "google_compute_firewall": "Firewall",
    "google_compute_network": "Network",
    "google_compute_router": "Router",
    "google_compute_router_nat": "RouterNat",
    "google_compute_subnetwork": "Subnetwork",
    "google_monitoring_notification_channel": "NotificationChannel",
    "google_project_iam_custom_role": "the custom project role",
    "google_project_iam_member": "IAM Member",
    "google_project_service": "Project Service",
    "google_service_account": "service account",
    "google_service_account_iam_member": "IAM Member",
    "google_storage_bucket": "bucket",
    "google_storage_bucket_iam_member": "IAM Member",
}
_IDS = {
    "google_artifact_registry_repository": "projects/{project}/locations/{location}/repositories/{repository_id}",
    "google_artifact_registry_repository_iam_member": (
        "projects/{project}/locations/{location}/repositories/{repository}/{role}/{member}"
    ),
    "google_billing_budget": "billingAccounts/{billing_account}/budgets/{unique}",
    "google_compute_firewall": "projects/{project}/global/firewalls/{name}",
    "google_compute_network": "projects/{project}/global/networks/{name}",
    "google_compute_router": "projects/{project}/regions/{region}/routers/{name}",
    "google_compute_router_nat": "{project}/{region}/{router}/{name}",
    "google_compute_subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "google_monitoring_notification_channel": "projects/{project}/notificationChannels/{unique}",
    "google_project_iam_custom_role": "projects/{project}/roles/{role_id}",
    "google_project_iam_member": "{project}/{role}/{member}",
    "google_project_service": "{project}/{service}",
    "google_service_account": "projects/{project}/serviceAccounts/{account_id}@{project}.iam.gserviceaccount.com",
    "google_service_account_iam_member": "{service_account_id}/{role}/{member}",
    "google_storage_bucket": "{name}",
    "google_storage_bucket_iam_member": "b/{bucket}/{role}/{member}",
}
# Making one that exists already is success.
DELETED_ROLES = "deleted roles"
"""In the place of a kind: custom roles whose names cannot be used for 37 days. (For the first 7 of them the provider
takes them back.)"""
BUCKETS_OF_OTHERS = "buckets of others"
"""In the place of a kind: buckets that Terraform has not made."""
REPEATABLE = {kind for kind in WORDS if kind.endswith("_iam_member")} | {"google_project_service"}
ALWAYS_DECIDED = {"effective_labels", "terraform_labels"}

# What a new project has: https://cloud.google.com/service-usage/docs/enabled-service
_ON_FROM_THE_START = {f"{name}.googleapis.com" for name in ("serviceusage", "storage", "logging", "monitoring")}
_APIS = {
    "google_artifact_registry": ("artifactregistry", "Artifact Registry API"),
    "google_billing_budget": ("billingbudgets", "Cloud Billing Budget API"),
    "google_compute": ("compute", "Compute Engine API"),
    "google_project_iam_custom_role": ("iam", "Identity and Access Management (IAM) API"),
    "google_project_iam_member": ("cloudresourcemanager", "Cloud Resource Manager API"),
    "google_service_account": ("iam", "Identity and Access Management (IAM) API"),
}
_PERMISSIONS = {
    "google_artifact_registry_repository": "artifactregistry.repositories",
    "google_compute_firewall": "compute.firewalls",
    "google_compute_network": "compute.networks",
    "google_compute_router": "compute.routers",
    "google_compute_subnetwork": "compute.subnetworks",
    "google_project_iam_custom_role": "iam.roles",
    "google_service_account": "iam.serviceAccounts",
    "google_storage_bucket": "storage.buckets",
}


def decided(kind: str, state: Mapping[str, Any], *, number: str, unique: str) -> dict[str, Any]:
    """The attributes that Google decides, in the forms that it gives them.

    Args:
        state: what is known already.
        number: of the project.
        unique: digits that no other resource has.
    """
    identity = _IDS[kind].format(**{**state, "unique": unique})
    if kind.endswith("_iam_member") and state["condition"]:
        identity += f"/{state['condition'][0]['title']}"
    known: dict[str, Any] = {
        "id": identity,
        "deletion_policy": "DELETE",
        "etag": "BwYwMTIzNDU=",
        "creation_timestamp": "2026-11-20T00:00:00.000-08:00",
        "create_time": "2026-11-20T08:00:00Z",
        "update_time": "2026-11-20T08:00:00Z",
    }
    if kind.startswith("google_compute"):
        known["self_link"] = COMPUTE + identity
    if "labels" in state:
        every = {**(state["labels"] or {}), "goog-terraform-provisioned": "true"}
        known |= {"effective_labels": every, "terraform_labels": every}
    match kind:
        case "google_compute_network":
            known |= {"numeric_id": unique, "network_id": unique, "gateway_ipv4": "", "routing_mode": "REGIONAL"}
        case "google_compute_subnetwork":
            gateway = str(next(ipaddress.ip_network(state["ip_cidr_range"]).hosts()))
            known |= {"gateway_address": gateway, "subnetwork_id": unique, "purpose": "PRIVATE"}
        case "google_compute_firewall":
            known |= {"direction": "INGRESS", "destination_ranges": []}
        case "google_storage_bucket":
            known |= {
                "self_link": f"https://www.googleapis.com/storage/v1/b/{state['name']}",
                "url": f"gs://{state['name']}",
                "project_number": int(number),
            }
        case "google_artifact_registry_repository":
            place = f"{state['location']}-{state['format'].lower()}.pkg.dev"
            known |= {
                "name": state["repository_id"],
                "registry_uri": f"{place}/{state['project']}/{state['repository_id']}",
            }
        case "google_service_account":
            email = f"{state['account_id']}@{state['project']}.iam.gserviceaccount.com"
            known |= {"email": email, "member": f"serviceAccount:{email}", "name": identity, "unique_id": unique}
        case "google_project_iam_custom_role":
            known |= {"name": identity, "deleted": False}
        case "google_billing_budget":
            known["name"] = identity
        case "google_monitoring_notification_channel":
            known |= {"name": identity, "verification_status": ""}
    return known


def refuses_to_create(resources: Resources, kind: str, new: Mapping[str, Any]) -> str | None:
    """Why Google doesn't make it; None if it does."""
    if message := _api_off(resources, kind):
        return message
    if kind in ("google_compute_subnetwork", "google_compute_firewall", "google_compute_router"):
        links = [each["self_link"] for each in resources.get("google_compute_network", {}).values()]
        if not any(_is(link, new["network"]) for link in links):
            return f"Error 404: The resource '{new['network']}' was not found, notFound"
    if kind == "google_compute_router_nat":
        routers = resources.get("google_compute_router", {})
        if not any(each["name"] == new["router"] for each in routers.values()):
            return f"Error 404: The resource '{new['router']}' was not found, notFound"
    if kind.endswith("_iam_member"):
        return _unknown_in_binding(resources, kind, new)
    if new["id"] in resources.get(DELETED_ROLES, {}):
        what = f"You can't create a role_id ({new['role_id']}) which has been marked for deletion."
        return f"Error 400: {what}, failedPrecondition"
    return None


def _api_off(resources: Resources, kind: str) -> str | None:
    name, title = next((api for prefix, api in _APIS.items() if kind.startswith(prefix)), ("storage", "Cloud Storage"))
    host = f"{name}.googleapis.com"
    enabled = {each["service"] for each in resources.get("google_project_service", {}).values()}
    if kind == "google_project_service" or host in enabled | _ON_FROM_THE_START:
        return None
    return api_disabled(name, title)


def api_disabled(name: str, title: str) -> str:
    """Google's words for an API that is off, or was enabled a moment ago."""
    host = f"{name}.googleapis.com"
    return (
        f"Error 403: {title} has not been used in project 123456789012 before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{host}/overview?project=123456789012 then retry. If you "
        f"enabled this API recently, wait a few minutes for the action to propagate to our systems and retry., "
        f"accessNotConfigured"
    )


def _unknown_in_binding(resources: Resources, kind: str, new: Mapping[str, Any]) -> str | None:
    accounts = {each["email"] for each in resources.get("google_service_account", {}).values()}
    who, _, address = new["member"].partition(":")
    if who == "serviceAccount" and address.endswith(".iam.gserviceaccount.com") and address not in accounts:
        return f"Error 400: Service account {address} does not exist., badRequest"
    roles = resources.get("google_project_iam_custom_role", {})
    if not new["role"].startswith("roles/") and new["role"] not in roles:
        return f'Error 400: The role name must be in the form "roles/{{role}}": {new["role"]}, badRequest'
    buckets = {*resources.get("google_storage_bucket", {}), *resources.get(BUCKETS_OF_OTHERS, {})}
    if kind == "google_storage_bucket_iam_member" and new["bucket"] not in buckets:
        return "Error 404: The specified bucket does not exist., notFound"
    if kind == "google_artifact_registry_repository_iam_member":
        found = resources.get("google_artifact_registry_repository", {}).values()
        if new["repository"].rpartition("/")[2] not in {each["repository_id"] for each in found}:
            return "Error 404: Requested entity was not found."
    accounts_by_id = resources.get("google_service_account", {})
    if kind == "google_service_account_iam_member" and new["service_account_id"] not in accounts_by_id:
        return "Error 404: Requested entity was not found."
    return None


def exists(kind: str, new: Mapping[str, Any]) -> str:
    """What is said about the second of a name."""
    if kind == "google_storage_bucket":
        return "Error 409: Your previous request to create the named bucket succeeded and you already own it., conflict"
    return f"Error 409: The resource '{new['id']}' already exists, alreadyExists"


def refuses_to_delete(resources: Resources, kind: str, state: Mapping[str, Any]) -> str | None:
    """Why Google doesn't delete it; None if it does."""
    if kind != "google_compute_network":
        return None
    for other in ("google_compute_subnetwork", "google_compute_firewall", "google_compute_router"):
        for user in resources.get(other, {}).values():
            if _is(state["self_link"], user["network"]):
                what = f"The network resource '{state['id']}' is already being used by '{user['id']}'"
                return f"Error 400: {what}, resourceInUseByAnotherResource"
    return None


def stays(kind: str, state: Mapping[str, Any]) -> bool:
    """Whether Terraform only forgets it."""
    return kind == "google_project_service" and not state["disable_on_destroy"]


def forbidden(kind: str, state: Mapping[str, Any]) -> str:
    """Google's words for a permission to create that is missing."""
    permission = f"{_PERMISSIONS.get(kind, 'resourcemanager.projects')}.create"
    return f"Required '{permission}' permission for '{state['id']}', forbidden"


def _is(link: str, network: str) -> bool:
    """Whether a network's link and what names it (link, path or name) are the same."""
    return link == network or link.endswith(f"/{network.rpartition('/')[2]}")
