"""What policies of an organization refuse, in the words in which others met them (tests/unit/real_errors.yaml).

An answer with 412 `conditionNotMet` or, `in_operation`, an operation that ends with CONDITION_NOT_MET: both were seen.
What a policy forbids: https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tests.standins.compute.catalogue import REGION_OF
from tests.standins.compute.errors import ApiError, invalid

EXTERNAL = "compute.vmExternalIpAccess"
GUEST_ATTRIBUTES = "compute.disableGuestAttributesAccess"
LOCATIONS = "gcp.resourceLocations"
# Metadata that the policy forbids to switch on or off, in lower case.
_METADATA = {
    "compute.requireOsLogin": ("enable-oslogin", "false"),
}


class Policies:
    """The policies that hold for the project."""

    def __init__(self) -> None:
        self._allowed: dict[str, frozenset[str]] = {}
        self._in_operation: set[str] = set()

    def enforce(self, constraint: str, *, allowed: Collection[str] = (), in_operation: bool = False) -> None:
        """`allowed`: regions, of gcp.resourceLocations."""
        if constraint not in {EXTERNAL, GUEST_ATTRIBUTES, LOCATIONS, *_METADATA}:
            raise invalid(f"this emulator has no policy {constraint}")
        self._allowed[constraint] = frozenset(allowed)
        if in_operation:
            self._in_operation.add(constraint)

    def clear(self) -> None:
        self._allowed.clear()
        self._in_operation.clear()

    def refusals(
        self, path: str, properties: Mapping[str, Any], *, zone: str, project: str, at_once: bool = False
    ) -> list[str]:
        """Why no VMs like these may be made.

        Args:
            path: the first one's: "projects/p/zones/z/instances/i".
            project: its number.
            at_once: only what refuses the request itself.
        """
        by_metadata = self._forbidden(properties.get("metadata", {}))
        external = any(one.get("accessConfigs") for one in properties["networkInterfaces"])
        found = []
        for constraint, allowed in self._allowed.items():
            violated = f"Constraint constraints/{constraint} violated for project {project}."
            if at_once and constraint in self._in_operation:
                continue
            if constraint in by_metadata:
                found.append(violated)
            elif constraint == EXTERNAL and external:
                found.append(f"{violated} Add instance {path} to the constraint to use external IP with it.")
            elif constraint == LOCATIONS and REGION_OF[zone] not in allowed:
                found.append(
                    f"Location ZONE:{zone} violates constraint constraints/{LOCATIONS} on the resource {path}."
                )
        return found

    def _forbidden(self, metadata: Mapping[str, Any]) -> set[str]:
        """The policies that forbid one of these items."""
        asked = {(item["key"], item.get("value", "").lower()) for item in metadata.get("items", [])}
        return {constraint for constraint in self._allowed if _METADATA.get(constraint) in asked}

    def check_guest_attributes(self, project: str) -> None:
        """Raises ApiError: nobody may read guest attributes.

        IAP Desktop takes 412 for this policy: https://github.com/GoogleCloudPlatform/iap-desktop
        """
        if GUEST_ATTRIBUTES in self._allowed:
            text = f"Constraint constraints/{GUEST_ATTRIBUTES} violated for project {project}."
            raise ApiError(412, "conditionNotMet", text)
