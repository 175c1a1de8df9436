"""The names by which Compute Engine knows things: zones, regions, requests. Pure."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any


def last_segment(url: str) -> str:
    """`us-central1-a` of `https://…/zones/us-central1-a`."""
    return url.rpartition("/")[2]


def zone_of(resource: Mapping[str, Any]) -> str:
    """The zone of an instance, disk, machine type or operation."""
    return last_segment(resource.get("zone", ""))


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def continent(place: str) -> str:
    """Of a region or a zone, as the first word of most regions there: `northamerica`, `europe`."""
    first = place.partition("-")[0]
    return {"us": "northamerica"}.get(first, first)


def request_id(cluster: str, cluster_id: str = "") -> str:
    """A new request id that shows, in operations still in flight, for which cluster it was made.

    A UUID of version 4 in form, as the API wants it, whose first 48 bits are a digest of the name; 12 random bits and
    the cluster's id follow, where one is given, and 36 more random bits.
    """
    random = uuid.uuid4().hex
    return str(uuid.UUID(hex=_name_digest(cluster) + random[12:20] + (cluster_id or random[20:26]) + random[26:]))


def cluster_id_of(request_id: str) -> str:
    """The id of the cluster for which `request_id` says it was made."""
    return request_id.replace("-", "")[20:26]


def belongs_to(request_id: str, cluster: str) -> bool:
    """Whether `request_id` (an operation's clientOperationId) was made for a cluster of this name."""
    return request_id.replace("-", "").lower().startswith(_name_digest(cluster))


def _name_digest(cluster: str) -> str:
    return hashlib.sha256(f"hvdcloud:{cluster}".encode()).hexdigest()[:12]
