"""Which permission a method needs, and on what: https://cloud.google.com/compute/docs/reference/rest/v1 names them.

Only the method's own: those on what else its request names (disks, images, subnetworks, service accounts) are not asked
for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

_VERBS = {"insert": "create", "bulkInsert": "create", "aggregatedList": "list", "wait": "get", "patch": "update"}
_OPERATIONS = ("globalOperations", "regionOperations", "zoneOperations")


def needed(method: str, path: Mapping[str, str], body: bytes) -> tuple[str, str]:
    """The permission, and the resource in the form of Google's messages.

    Args:
        method: its id, `compute.instances.delete`.
        path: the parameters in the path.
        body: of the request, as it came.

    Returns:
        `compute.instances.delete` and `projects/p/zones/z/instances/i`; what has no name of its own, such as a list,
        is asked of the project.
    """
    service, collection, verb = method.split(".")
    name = next((value for key, value in path.items() if key not in ("project", "zone", "region")), None)
    if collection == "instanceGroupManagerResizeRequests":
        # They have no permissions of their own.
        collection, verb = "instanceGroupManagers", "get" if verb in ("get", "list") else "update"
    if verb == "insert":
        name = _name_in(body)
    permission = f"{service}.{collection}.{_VERBS.get(verb, verb)}"
    project = f"projects/{path['project']}"
    if collection in ("zones", "regions"):
        key = collection[:-1]
        return permission, f"{project}/{collection}/{path[key]}" if key in path else project
    if name is None:
        return permission, project
    place = next((f"{key}s/{path[key]}" for key in ("zone", "region") if key in path), "global")
    return permission, f"{project}/{place}/{'operations' if collection in _OPERATIONS else collection}/{name}"


def _name_in(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["name"])
    except (ValueError, KeyError, TypeError):
        return None
