"""What Terraform is going to do, for people: `terraform show -json` of a plan → one named thing per line. Pure.

https://developer.hashicorp.com/terraform/internals/json-format#plan-representation
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

# In the order in which a plan names them; grants come last.
_KINDS = {
    "google_project_service": "API",
    "google_compute_network": "network",
    "google_compute_subnetwork": "subnetwork",
    "google_compute_firewall": "firewall rule",
    "google_compute_router": "router",
    "google_compute_router_nat": "NAT gateway",
    "google_compute_address": "address",
    "google_storage_bucket": "bucket",
    "google_artifact_registry_repository": "image repository",
    "google_billing_budget": "budget",
    "google_monitoring_notification_channel": "mail to",
    "google_service_account": "service account",
    "google_project_iam_custom_role": "role",
}
BUCKET = "google_storage_bucket"
API = "google_project_service"
# What `terraform import` takes: each kind's page at https://registry.terraform.io/providers/hashicorp/google/latest/docs
_IDS = {
    "google_artifact_registry_repository": "projects/{project}/locations/{location}/repositories/{repository_id}",
    "google_compute_firewall": "projects/{project}/global/firewalls/{name}",
    "google_compute_network": "projects/{project}/global/networks/{name}",
    "google_compute_router": "projects/{project}/regions/{region}/routers/{name}",
    "google_compute_router_nat": "{project}/{region}/{router}/{name}",
    "google_compute_subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "google_project_iam_custom_role": "projects/{project}/roles/{role_id}",
    "google_service_account": "projects/{project}/serviceAccounts/{account_id}@{project}.iam.gserviceaccount.com",
    "google_storage_bucket": "{name}",
}
_NAMES = ("name", "repository_id", "account_id", "service", "role_id", "display_name")
_REGIONAL = ("google_compute_subnetwork", "google_compute_router", "google_compute_router_nat")
_IAM = re.compile(r"google_\w+_iam_(?:member|binding)")
_IAM_TARGETS = ("bucket", "repository", "subnetwork", "service_account_id", "project")


class Action(str, Enum):
    """What happens to one thing."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    REPLACE = "replace"

    @property
    def sign(self) -> str:
        """As in a diff."""
        return {"create": "+", "change": "~", "delete": "-", "replace": "±"}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """One object that will be made, changed or deleted.

    Attributes:
        address: Terraform's, such as `google_compute_network.this`.
        name: for people: `network hvdcloud`.
        fields: what of it changes, or makes it a new one.
        drifted: it was changed since the last setup.
    """

    address: str
    type: str
    action: Action
    name: str
    fields: Sequence[str] = ()
    drifted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """What one run of Terraform is going to do.

    Attributes:
        names: address → name for people, of everything that there will be or was.
        import_ids: address → what `terraform import` calls it, of everything that will be made and has a known name.
        outputs: those that are known before it is done.
        there: what is in the state now, after asking the cloud.
    """

    changes: Sequence[ResourceChange]
    names: Mapping[str, str]
    import_ids: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Any]
    outputs_change: bool
    there: Sequence[Resource]

    @property
    def empty(self) -> bool:
        """Nothing in the cloud changes."""
        return not self.changes

    def deleted(self, kind: str) -> Sequence[ResourceChange]:
        """The things of a Terraform type that will be deleted, or replaced."""
        gone = (Action.DELETE, Action.REPLACE)
        return [change for change in self.changes if change.type == kind and change.action in gone]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One thing in Terraform's state.

    Attributes:
        id: its name in the cloud; "" if it has none.
        depends_on: addresses, without an index, of all that has to be there for it.
    """

    address: str
    type: str
    id: str
    depends_on: Sequence[str] = ()


def read_plan(shown: Mapping[str, Any]) -> SetupPlan:
    """The plan as `terraform show -json` prints it."""
    drifted = {entry["address"] for entry in shown.get("resource_drift", ()) if entry["change"]["actions"] != ["no-op"]}
    changes, names, ids = [], {}, {}
    for entry in shown.get("resource_changes", ()):
        if entry.get("mode") == "data":
            continue
        names[entry["address"]] = name = _name(entry["type"], entry["change"], entry["address"])
        action = _action(entry["change"]["actions"])
        if action is Action.CREATE and entry["type"] in _IDS:
            after = {key: value for key, value in (entry["change"].get("after") or {}).items() if value is not None}
            with contextlib.suppress(KeyError):  # A part of it is not known yet.
                ids[entry["address"]] = _IDS[entry["type"]].format_map(after)
        if action is not None:
            change = ResourceChange(
                address=entry["address"],
                type=entry["type"],
                action=action,
                name=name,
                fields=_fields(entry["change"], action),
                drifted=entry["address"] in drifted,
            )
            changes.append(change)
    changes.sort(key=lambda change: list(_KINDS).index(change.type) if change.type in _KINDS else len(_KINDS))
    outputs = shown.get("planned_values", {}).get("outputs", {})
    return SetupPlan(
        changes=changes,
        names=names,
        import_ids=ids,
        outputs={name: output["value"] for name, output in outputs.items() if "value" in output},
        outputs_change=any(each["actions"] != ["no-op"] for each in shown.get("output_changes", {}).values()),
        there=list(_resources(shown.get("prior_state", {}).get("values", {}).get("root_module", {}))),
    )


def describe(change: ResourceChange) -> str:
    """One line: `~ bucket lab-hvdcloud (lifecycle_rule; changed outside hvdcloud)`."""
    notes = [", ".join(change.fields)] if change.fields else []
    notes += ["changed outside hvdcloud"] if change.drifted and change.action is Action.CHANGE else []
    notes += ["deleted since"] if change.drifted and change.action is Action.CREATE else []
    return f"{change.action.sign} {change.name}" + (f" ({'; '.join(notes)})" if notes else "")


def describe_all(plan: SetupPlan) -> list[str]:
    """A line for each change; APIs that are switched on share one, and those that are not switched off have none."""
    lines = [describe(change) for change in plan.changes if change.type != API]
    apis = [change for change in plan.changes if change.type == API and change.action is not Action.DELETE]
    if apis:
        short = (change.name.removeprefix("API ").removesuffix(".googleapis.com") for change in apis)
        lines.insert(0, f"+ API{'s' if len(apis) > 1 else ''} on: {', '.join(sorted(short))}")
    return lines


def _action(actions: Sequence[str]) -> Action | None:
    if "create" in actions and "delete" in actions:
        return Action.REPLACE
    known = {"create": Action.CREATE, "update": Action.CHANGE, "delete": Action.DELETE}
    return known.get(actions[0]) if actions else None


def _fields(change: Mapping[str, Any], action: Action) -> Sequence[str]:
    if action is Action.REPLACE:
        return sorted({str(path[0]) for path in change.get("replace_paths") or () if path})
    if action is not Action.CHANGE:
        return ()
    before, after = change.get("before") or {}, change.get("after") or {}
    unknown = change.get("after_unknown") or {}
    computed = {name for name, is_unknown in unknown.items() if is_unknown is True}
    return sorted(computed | {name for name in {*before, *after} if before.get(name) != after.get(name)})


def _name(kind: str, change: Mapping[str, Any], address: str) -> str:
    values = change.get("after") or change.get("before") or {}
    if _IAM.fullmatch(kind):
        return _grant(kind, values)
    title = _KINDS.get(kind, kind.removeprefix("google_").replace("_", " "))
    name = next((str(values[key]).rpartition("/")[2] for key in _NAMES if values.get(key)), None)
    if name and kind in _REGIONAL and values.get("region"):
        name += f" in {values['region']}"
    return f"{title} gs://{name}" if kind == BUCKET and name else f"{title} {name or address.rpartition('.')[2]}"


def _grant(kind: str, values: Mapping[str, Any]) -> str:
    """`grant to user:ann@example.com: storage.objectUser on bucket lab-hvdcloud`.

    What is not known before it is made is the module's own: its role, and the account of nodes.
    """
    account = "the nodes' service account"
    role = str(values.get("role") or "a role of its own").rpartition("roles/")[2]
    member = values.get("member") or ", ".join(values.get("members") or ()) or account
    what = next((key for key in _IAM_TARGETS if values.get(key)), None)
    if what == "project" or "_project_" in kind:
        where = "the project"
    elif what is None:
        where = "the nodes' service account" if "service_account" in kind else kind.split("_iam_")[0]
    else:
        kinds = {"service_account_id": "service account", "repository": "image repository"}
        where = f"{kinds.get(what, what)} {str(values[what]).rpartition('/')[2].removeprefix('b/')}"
    title = next((condition.get("title") for condition in values.get("condition") or ()), None)
    return f"grant to {member}: {role} on {where}" + (f", if {title}" if title else "")


def _resources(module: Mapping[str, Any]) -> Iterator[Resource]:
    for entry in module.get("resources", ()):
        if entry.get("mode") == "managed":
            values = entry.get("values") or {}
            yield Resource(
                address=entry["address"],
                type=entry["type"],
                id=str(values.get("name") or values.get("service") or ""),
                depends_on=tuple(entry.get("depends_on", ())),
            )
    for child in module.get("child_modules", ()):
        yield from _resources(child)
