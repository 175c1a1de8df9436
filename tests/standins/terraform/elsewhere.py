"""What Terraform makes is made at the other stand-ins too, so that a cluster finds it there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener


class Elsewhere:
    """The other stand-ins.

    Args:
        compute: URL of the Compute Engine emulator; None: there is none.
        storage: URL of the stand-in of Cloud Storage; None: there is none.
    """

    def __init__(self, *, compute: str | None, storage: str | None) -> None:
        self._compute = compute
        self._storage = storage
        self._opener = build_opener(ProxyHandler({}))

    def create(self, kind: str, new: Mapping[str, Any], resources: Mapping[str, Any]) -> str | None:
        """Make it there; why it couldn't be, or None."""
        if self._storage and kind == "google_storage_bucket":
            body = {name: new[key] for name, key in (("name", "name"), ("location", "location")) if new[key]}
            status, answer = self._ask("POST", f"{self._storage}/storage/v1/b?project={new['project']}", body)
            if status != 200:
                return f"Error {status}: {answer.get('error', {}).get('message')}"
        if self._compute and kind == "google_compute_network":
            self._command("POST", f"networks/{new['name']}", {})
        if self._compute and kind == "google_compute_subnetwork":
            # The emulator's subnetworks have the names of their networks.
            network = new["network"].rpartition("/")[2]
            assert new["name"] == network, "a subnetwork whose name isn't its network's"
            self._command("POST", f"networks/{network}", {new["region"]: new["ip_cidr_range"]})
        if self._compute and kind == "google_compute_firewall":
            self._command("POST", "firewalls", _firewall(new))
        if self._compute and kind == "google_project_iam_custom_role":
            self._command("POST", f"roles/{new['role_id']}", {"name": new["name"], "title": new["title"]})
        return None

    def delete(self, kind: str, state: Mapping[str, Any]) -> str | None:
        """Delete it there; why it couldn't be, or None."""
        if self._storage and kind == "google_storage_bucket":
            bucket = f"{self._storage}/storage/v1/b/{quote(state['name'], safe='')}"
            _, found = self._ask("GET", f"{bucket}/o")
            if found.get("items") and not state["force_destroy"]:
                return f"Error trying to delete bucket {state['name']} without `force_destroy` set to true"
            for each in found.get("items", []):
                self._ask("DELETE", f"{bucket}/o/{quote(each['name'], safe='')}")
            self._ask("DELETE", bucket)
        if self._compute and kind == "google_compute_firewall":
            self._command("DELETE", f"firewalls/{state['name']}", {})
        if self._compute and kind == "google_project_iam_custom_role":
            self._command("POST", f"roles/{state['role_id']}", {"name": state["name"], "deleted": True})
        if self._compute and kind == "google_compute_network":
            self._command("DELETE", f"networks/{state['name']}", {})
        return None

    def _command(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        status, answer = self._ask(method, f"{self._compute}/_emulator/{path}", body)
        if status != 200:
            raise RuntimeError(f"the emulator's {path}: {status} {answer}")

    def _ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=300) as response:
                return response.status, json.loads(response.read() or b"{}")
        except HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")


def _firewall(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A rule in the API's form."""
    names = {
        "name": "name",
        "network": "network",
        "description": "description",
        "direction": "direction",
        "priority": "priority",
        "source_ranges": "sourceRanges",
        "source_tags": "sourceTags",
        "target_tags": "targetTags",
    }
    body = {theirs: rule[ours] for ours, theirs in names.items() if rule[ours]}
    for ours, theirs in (("allow", "allowed"), ("deny", "denied")):
        if rule[ours]:
            entries = ({"IPProtocol": each["protocol"], "ports": each["ports"]} for each in rule[ours])
            body[theirs] = [{name: value for name, value in entry.items() if value} for entry in entries]
    return body
