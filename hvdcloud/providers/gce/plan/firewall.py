"""The firewall rules that a cluster needs beside the existing ones. Pure: bodies for `firewalls.insert`."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvdcloud.cluster.model import SSH_PORT, ClusterSpec
from hvdcloud.errors import CredentialsError
from hvdcloud.providers.base import Problem
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
    return _missing(settings, existing=existing, tag=cluster_tag(spec), description=description)


def rules_of_all_clusters(settings: Settings, *, existing: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of rules by which the nodes of every cluster reach those of every other one, as setup once made one."""
    network = network_path(settings)
    return [
        str(rule["name"])
        for rule in existing
        if _applies(rule, network=network, tag=NETWORK_TAG) and NETWORK_TAG in rule.get("sourceTags", [])
    ]


def missing_in_shared_vpc(
    settings: Settings, *, existing: Sequence[Mapping[str, Any]], ranges: Sequence[str] = ()
) -> Problem | None:
    """The rules that the host project lacks, with the commands for its administrator: nothing is made there.

    A firewall rule is made in its network's own project, else "Cross project referencing is not allowed"; that takes
    rights in the host project (https://cloud.google.com/vpc/docs/shared-vpc#iam_in_shared_vpc). So the nodes of all
    clusters there share one rule.

    Args:
        existing: the host project's.
        ranges: of the subnetworks that nodes may be in; a rule that lets these in lets the nodes in.
    """
    missing = _missing(settings, existing=existing, tag=NETWORK_TAG, ranges=ranges)
    if not missing:
        return None
    host = settings.network_project
    names = " and ".join(body["name"] for body in missing)
    message = f"the Shared VPC of project {host} lacks firewall rules for the nodes: {names}"
    hint = f"an administrator of {host} can: {' && '.join(_command(body, project=host) for body in missing)}"
    return Problem(message=message, hint=hint, error=CredentialsError)


def unseen_in_shared_vpc(settings: Settings) -> Problem:
    """Nothing is known of the host project's rules."""
    problem = missing_in_shared_vpc(settings, existing=())
    assert problem is not None
    message = (
        f"the firewall rules of project {settings.network_project} may not be read, and the nodes need two of them"
    )
    return Problem(message=message, hint=f"unless they exist, {problem.hint}")


def _command(body: Mapping[str, Any], *, project: str) -> str:
    [allowed] = body["allowed"]
    sources = {"ranges": body.get("sourceRanges", ()), "tags": body.get("sourceTags", ())}
    return shlex.join(
        [
            *("gcloud", "compute", "firewall-rules", "create", body["name"], f"--project={project}"),
            f"--network={body['network'].rpartition('/')[2]}",
            f"--allow={':'.join([allowed['IPProtocol'], *allowed.get('ports', ())])}",
            *(f"--source-{kind}={','.join(names)}" for kind, names in sources.items() if names),
            f"--target-tags={','.join(body['targetTags'])}",
        ]
    )


def _missing(
    settings: Settings,
    *,
    existing: Sequence[Mapping[str, Any]],
    tag: str,
    ranges: Sequence[str] = (),
    description: str = "",
) -> list[dict[str, Any]]:
    network = network_path(settings)
    common = {"description": description, "network": network, "direction": "INGRESS", "targetTags": [tag]}
    rules = [rule for rule in existing if _applies(rule, network=network, tag=tag)]
    source = IAP_RANGE if settings.ssh_source == IAP else settings.ssh_source
    bodies = []
    if not any(_lets_ssh_in(rule, ipaddress.IPv4Network(source, strict=False)) for rule in rules):
        allowed = [{"IPProtocol": "tcp", "ports": [str(SSH_PORT)]}]
        bodies.append({"name": f"{tag}-ssh", **common, "sourceRanges": [source], "allowed": allowed})
    if not any(_lets_nodes_talk(rule, tag, ranges) for rule in rules):
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


def _comes_from(rule: Mapping[str, Any], sources: Sequence[ipaddress.IPv4Network]) -> Iterator[bool]:
    """Whether the rule is for all addresses of each of these ranges."""
    ranges = [ipaddress.ip_network(each, strict=False) for each in rule.get("sourceRanges", [])]
    for source in sources:
        yield any(isinstance(each, ipaddress.IPv4Network) and source.subnet_of(each) for each in ranges)


def _lets_ssh_in(rule: Mapping[str, Any], source: ipaddress.IPv4Network) -> bool:
    return all(_comes_from(rule, [source])) and any(
        _allows_tcp(allowed, ports=(SSH_PORT, SSH_PORT)) for allowed in rule.get("allowed", [])
    )


def _lets_nodes_talk(rule: Mapping[str, Any], tag: str, ranges: Sequence[str]) -> bool:
    sources = rule.get("sourceTags", [])
    inside = [ipaddress.IPv4Network(each) for each in ranges]
    among_nodes = tag in sources or (bool(inside) and all(_comes_from(rule, inside)))
    return among_nodes and any(_allows_tcp(allowed, ports=(1, 65535)) for allowed in rule.get("allowed", []))


def _allows_tcp(allowed: Mapping[str, Any], *, ports: tuple[int, int]) -> bool:
    if str(allowed.get("IPProtocol")).lower() not in {"tcp", "all", "6"}:
        return False
    spans = [str(each).partition("-") for each in allowed.get("ports", [])]
    return not spans or any(int(low) <= ports[0] and ports[1] <= int(high or low) for low, _, high in spans)
