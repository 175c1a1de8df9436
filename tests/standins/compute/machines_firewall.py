"""A VPC network's ingress rules as text for `iptables-restore`, one table for each machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.standins.compute.backing import Instance

CHAIN = "VPC"
# By name, because ports are only possible with these.
_WITH_PORTS = {"tcp", "udp", "sctp"}


def iptables_text(
    instance: Instance, *, rules: Sequence[Mapping[str, Any]], members: Sequence[tuple[Instance, str]]
) -> str:
    """What replaces the chain `VPC` of table mangle on one machine; what no rule allows is dropped.

    Egress is not restricted, and neither is what comes in IPv6.

    Args:
        instance: whose machine it is.
        rules: `Firewall` resources.
        members: every instance there is, with its address: what tags of rules stand for.

    Raises:
        NotImplementedError: a rule restricts destinations, or names service accounts.
    """
    lines = ["*mangle", f":{CHAIN} - [0:0]", f"-A {CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"]
    # At the same priority deny wins: https://cloud.google.com/firewall/docs/firewalls#priority_order_for_firewall_rules
    for rule in sorted(rules, key=lambda rule: (int(rule.get("priority", 1000)), "denied" not in rule)):
        if _applies(rule, instance):
            matches = [f"{source}{service}" for source in _sources(rule, members) for service in _services(rule)]
            target = "DROP" if "denied" in rule else "RETURN"
            lines += [f"-A {CHAIN}{match} -j {target}" for match in matches]
    return "\n".join([*lines, f"-A {CHAIN} -j DROP", "COMMIT", ""])


def _applies(rule: Mapping[str, Any], instance: Instance) -> bool:
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    if unknown := {"destinationRanges", "sourceServiceAccounts", "targetServiceAccounts"} & rule.keys():
        raise NotImplementedError(f"firewall {rule.get('name')}: {', '.join(unknown)} of ingress rules")
    if _network(rule) != _network(instance["networkInterfaces"][0]):
        return False
    return not rule.get("targetTags") or _selects(rule, "target", instance)


def _sources(rule: Mapping[str, Any], members: Sequence[tuple[Instance, str]]) -> Iterator[str]:
    """Matches of where a packet comes from; one that matches everything if the rule does not say."""
    ranges = rule.get("sourceRanges", [])
    if not ranges and not rule.get("sourceTags"):
        yield ""
    yield from (f" -s {found}" for found in ranges if ipaddress.ip_network(found, strict=False).version == 4)
    for instance, address in members:
        if _selects(rule, "source", instance) and _network(instance["networkInterfaces"][0]) == _network(rule):
            yield f" -s {address}/32"


def _services(rule: Mapping[str, Any]) -> Iterator[str]:
    for service in rule.get("allowed", rule.get("denied", [])):
        protocol = str(service["IPProtocol"]).lower()
        match = "" if protocol == "all" else f" -p {protocol}"
        ports = service.get("ports", []) if protocol in _WITH_PORTS else []
        yield from [f"{match} --dport {port.replace('-', ':')}" for port in ports] or [match]


def _selects(rule: Mapping[str, Any], side: str, instance: Instance) -> bool:
    """Whether the tags of this side of a rule name the instance."""
    return not set(rule.get(f"{side}Tags", [])).isdisjoint(instance.get("tags", {}).get("items", []))


def _network(resource: Mapping[str, Any]) -> str:
    return str(resource.get("network", "default")).rpartition("/")[2]
