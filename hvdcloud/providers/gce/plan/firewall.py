"""The firewall rules of a cluster. Pure: bodies for `firewalls.insert`."""

from __future__ import annotations

from typing import Any

from hvdcloud.cluster.model import SSH_PORT, ClusterSpec
from hvdcloud.providers.gce.plan.request import cluster_tag, network_path
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.providers.gce.ssh_access import IAP, IAP_RANGE


def firewall_bodies(spec: ClusterSpec, settings: Settings) -> list[dict[str, Any]]:
    """`Firewall` bodies of the cluster's own rules, which let nobody in to the nodes of another one.

    One lets the laptop (or IAP) reach the containers' sshd. One lets the nodes reach each other: Horovod, Open MPI and
    NCCL pick ports at random.
    """
    # Firewall rules have no labels: a cleanup reads the owner from here.
    description = " ".join(f"{key}={value}" for key, value in spec.labels.items())
    tag = cluster_tag(spec)
    common = {
        "description": description,
        "network": network_path(settings),
        "direction": "INGRESS",
        "targetTags": [tag],
    }
    source = IAP_RANGE if settings.ssh_source == IAP else settings.ssh_source
    ssh = [{"IPProtocol": "tcp", "ports": [str(SSH_PORT)]}]
    return [
        {"name": f"{tag}-ssh", **common, "sourceRanges": [source], "allowed": ssh},
        {"name": f"{tag}-mesh", **common, "sourceTags": [tag], "allowed": [{"IPProtocol": "all"}]},
    ]
