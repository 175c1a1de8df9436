"""The firewall rules that a cluster needs beside the existing ones. Pure: bodies for `firewalls.insert`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from hvdcloud.cluster.model import SSH_PORT, ClusterSpec
from hvdcloud.providers.gce.plan.request import NETWORK_TAG, cluster_tag, network_path, same_path
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.providers.gce.ssh_access import IAP, IAP_RANGE


def firewall_bodies(
    spec: ClusterSpec, settings: Settings, *, existing: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`Firewall` bodies that the cluster needs beside the `existing` rules of the network's project.

    One lets the laptop (or IAP) reach the containers' sshd, unless a rule on the tag `hvdcloud`, such as Terraform's,
    does so already. One lets the nodes reach each other: Horovod, Open MPI and NCCL pick ports at random. That is this
    cluster's own in any case: a rule on a tag that all clusters have lets each job reach every other one's nodes.
    """
    # Firewall rules have no labels: a cleanup reads the owner from here.
    description = " ".join(f"{key}={value}" for key, value in spec.labels.items())
    tag, network = cluster_tag(spec), network_path(settings)
    common = {"description": description, "network": network, "direction": "INGRESS", "targetTags": [tag]}
    rules = [rule for rule in existing if _applies(rule, network=network, tag=tag)]
    source = IAP_RANGE if settings.ssh_source == IAP else settings.ssh_source
    bodies = []
    if not any(_lets_ssh_in(rule, ipaddress.IPv4Network(source, strict=False)) for rule in rules):
        allowed = [{"IPProtocol": "tcp", "ports": [str(SSH_PORT)]}]
        bodies.append({"name": f"{tag}-ssh", **common, "sourceRanges": [source], "allowed": allowed})
    if not any(_lets_nodes_talk(rule, tag) for rule in rules):
        bodies.append({"name": f"{tag}-mesh", **common, "sourceTags": [tag], "allowed": [{"IPProtocol": "all"}]})
    return bodies


def _applies(rule: Mapping[str, Any], *, network: str, tag: str) -> bool:
    targets = rule.get("targetTags", [])
    return (
        rule.get("direction", "INGRESS") == "INGRESS"
        and not rule.get("disabled", False)
        and same_path(str(rule.get("network", "")), network)
        and (not targets or NETWORK_TAG in targets or tag in targets)
        and not rule.get("targetServiceAccounts")
    )


def _lets_ssh_in(rule: Mapping[str, Any], source: ipaddress.IPv4Network) -> bool:
    ranges = [ipaddress.ip_network(each, strict=False) for each in rule.get("sourceRanges", [])]
    lets_in = any(isinstance(each, ipaddress.IPv4Network) and source.subnet_of(each) for each in ranges)
    return lets_in and any(_allows_tcp(each, ports=(SSH_PORT, SSH_PORT)) for each in rule.get("allowed", []))


def _lets_nodes_talk(rule: Mapping[str, Any], tag: str) -> bool:
    allowed = rule.get("allowed", [])
    return tag in rule.get("sourceTags", []) and any(_allows_tcp(each, ports=(1, 65535)) for each in allowed)


def _allows_tcp(allowed: Mapping[str, Any], *, ports: tuple[int, int]) -> bool:
    if str(allowed.get("IPProtocol")).lower() not in {"tcp", "all", "6"}:
        return False
    spans = [str(each).partition("-") for each in allowed.get("ports", [])]
    return not spans or any(int(low) <= ports[0] and ports[1] <= int(high or low) for low, _, high in spans)
