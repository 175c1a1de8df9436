"""The methods, by what they're about. Importing this package fills the table in call.py."""

from __future__ import annotations

from tests.standins.compute.resources import (
    bulk,
    disks,
    firewalls,
    groups,
    instances,
    networks,
    operations,
    places,
    reservations,
    resource_policies,
    templates,
)

__all__ = [
    "bulk",
    "disks",
    "firewalls",
    "groups",
    "instances",
    "networks",
    "operations",
    "places",
    "reservations",
    "resource_policies",
    "templates",
]
