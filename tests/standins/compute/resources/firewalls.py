"""Firewall rules of VPC networks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, delete, implements, insert
from tests.standins.compute.errors import invalid, invalid_field, not_found
from tests.standins.compute.rules import check_name
from tests.standins.compute.state import Workers

_PROTOCOL = re.compile(r"all|tcp|udp|icmp|esp|ah|sctp|ipip|[0-9]{1,3}")
_PORTS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?")


def _firewall(call: Call) -> dict[str, Any]:
    name = call.path["firewall"]
    if name not in call.world.firewalls:
        raise not_found(call.url(f"global/firewalls/{name}"))
    return call.world.firewalls[name]


@implements("firewalls.get")
def get_firewall(call: Call) -> dict[str, Any]:
    return _firewall(call)


@implements("firewalls.list")
def list_firewalls(call: Call) -> dict[str, Any]:
    items = call.world.firewalls.values()
    return lists.plain(call.page("Firewall"), items, kind="compute#firewallList", path=call.url("global/firewalls"))


@implements("firewalls.insert")
def insert_firewall(call: Call) -> dict[str, Any]:
    world, body = call.world, call.body
    rule = firewall_of(world, body)
    return insert(call, rule, world.firewalls, scope="global", effect=call.lifecycle.firewalls_changed)


@implements("firewalls.delete")
def delete_firewall(call: Call) -> dict[str, Any]:
    changed = call.lifecycle.firewalls_changed
    return delete(call, _firewall(call), call.world.firewalls, scope="global", effect=changed)


def firewall_of(world: Workers, body: Mapping[str, Any]) -> dict[str, Any]:
    """The resource of a request's body.

    Raises:
        ApiError: 400 or 404.
    """
    name = body.get("name", "")
    check_name("resource.name", name)
    if ("allowed" in body) == ("denied" in body):
        raise invalid("Exactly one of allowed and denied must be set.")
    for entry in body.get("allowed", body.get("denied", [])):
        protocol = entry.get("IPProtocol", "")
        if not _PROTOCOL.fullmatch(protocol):
            raise invalid_field("resource.allowed[0].IPProtocol", protocol, "Unknown protocol.")
        for ports in entry.get("ports", []):
            if protocol not in ("tcp", "udp", "sctp") or not _PORTS.fullmatch(ports):
                raise invalid_field("resource.allowed[0].ports", ports, f"Not ports of {protocol}.")
    for field in ("sourceRanges", "destinationRanges"):
        for text in body.get(field, []):
            try:
                ipaddress.ip_network(text)
            except ValueError:
                raise invalid_field(f"resource.{field}", text, "Must be a valid CIDR address range.") from None
    for field in ("sourceTags", "targetTags"):
        for tag in body.get(field, []):
            check_name(f"resource.{field}", tag)
    ingress = body.get("direction", "INGRESS") == "INGRESS"
    if not ingress and ("sourceRanges" in body or "sourceTags" in body):
        raise invalid("sourceRanges and sourceTags are for ingress only.")
    if not 0 <= body.get("priority", 1000) <= 65535:
        raise invalid_field("resource.priority", body["priority"], "Must be 0 to 65535.")
    defaults: dict[str, Any] = {"direction": "INGRESS", "priority": 1000, "disabled": False}
    if ingress and not {"sourceRanges", "sourceTags", "sourceServiceAccounts"} & set(body):
        defaults["sourceRanges"] = ["0.0.0.0/0"]
    network = network_of(world, body.get("network", "global/networks/default"))
    return {
        **world.base("firewall", "global/firewalls", name),
        "logConfig": {"enable": False},
        **defaults,
        **body,
        "network": network["selfLink"],
    }


def network_of(world: Workers, url: str) -> dict[str, Any]:
    """A network by URL, partial URL or name.

    Raises:
        ApiError: 404.
    """
    match = re.fullmatch(
        r"(?:(?:https://(?:www|compute)\.googleapis\.com/compute/v1/)?projects/([^/]+)/)?global/networks/([^/]+)", url
    )
    if match is None:
        raise invalid_field("resource.network", url, "The URL is malformed.")
    if match[1] not in (None, world.project) or match[2] not in world.networks:
        raise not_found(f"projects/{match[1] or world.project}/global/networks/{match[2]}")
    return world.networks[match[2]]
