"""How VMs of this cluster are made: the requests with which the head of an elastic run replaces lost nodes. Pure."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

AUTHORIZED_KEY = "hvdcloud-authorized-key"
"""The metadata item with the keys that open a node (providers/gce/plan/request.py)."""


class VmTemplates(NamedTuple):
    """What the laptop sends when the run begins. Holds no secret."""

    bodies: tuple[dict[str, Any], ...]
    """bulkInserts, each for all nodes of one kind."""
    ends: float
    """When Compute Engine deletes the cluster, in seconds since the epoch."""
    request_id: str
    """One such, whose parts show for which cluster it is."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> VmTemplates:
        """As `launch` gets them. Raises KeyError, TypeError, ValueError: they cannot be used."""
        bodies = tuple(dict(body) for body in value["bodies"])
        return cls(bodies, float(value["ends"]), str(uuid.UUID(str(value["request_id"]))))

    def body(self, name: str, *, seconds: int, key: str) -> dict[str, Any] | None:
        """The bulkInsert for one VM; None if the templates do not say how it is made. Pure. `seconds`: after which
        Compute Engine deletes it. `key`: a public key that opens it, beside the cluster's own."""
        found = next((body for body in self.bodies if name in body["perInstanceProperties"]), None)
        if found is None:
            return None
        body = copy.deepcopy(found)
        body |= {"count": "1", "minCount": "1", "perInstanceProperties": {name: body["perInstanceProperties"][name]}}
        properties = body["instanceProperties"]
        properties["scheduling"]["maxRunDuration"] = {"seconds": str(seconds)}
        for item in properties["metadata"]["items"]:
            if item["key"] == AUTHORIZED_KEY:
                item["value"] = f"{item['value']}\n{key}"
        return body

    def new_request_id(self) -> str:
        """Another one for the same cluster, by which `hvdcloud down` finds the operation while it runs."""
        mark, random = self.request_id.replace("-", ""), uuid.uuid4().hex
        return str(uuid.UUID(hex=mark[:12] + random[12:20] + mark[20:26] + random[26:]))
