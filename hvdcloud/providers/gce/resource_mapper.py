"""What the Compute API answers, in the words of the provider contract. Pure, but for the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from hvdcloud.cluster.model import (
    LABEL_CLUSTER,
    LABEL_ID,
    LABEL_NODES,
    LABEL_OWNER,
    SSH_PORT,
    Cluster,
    ClusterObject,
    Node,
    NodeState,
    ObjectKind,
    created_by,
)
from hvdcloud.json_values import whole_number
from hvdcloud.providers.gce.inventory import ACTIVE, Inventory, Resource, described_labels, labels_of
from hvdcloud.providers.gce.money.costs import costs, moment
from hvdcloud.providers.gce.names import cluster_id_of, zone_of
from hvdcloud.providers.gce.plan.request import METADATA_BUCKET, METADATA_IMAGE
from hvdcloud.providers.gce.ssh_access import iap_proxy_command

# The rest of Instance.status (discovery document) is on its way out or out already.
_STATES = {"PENDING": NodeState.STARTING, "PROVISIONING": NodeState.STARTING, "STAGING": NodeState.STARTING}
_STATES |= {"RUNNING": NodeState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMapper:
    """From where the VMs are looked at."""

    project: str
    iap: bool
    """Nodes are reached through Identity-Aware Proxy, not at an address."""

    def node(self, instance: Resource) -> Node:
        """A VM as a node; its host key is not in the resource."""
        name, zone = str(instance["name"]), zone_of(instance)
        interface: Mapping[str, Any] = next(iter(instance.get("networkInterfaces", ())), {})
        configs = interface.get("accessConfigs")
        address = configs[0].get("natIP") if configs else interface.get("networkIP")
        return Node(
            name=name,
            index=_index(name),
            id=f"{zone}/{name}",
            state=node_state(instance),
            address=None if self.iap else address,
            port=SSH_PORT,
            # Not its DNS name: an outbound DNS policy of the network hides `.internal`.
            # https://cloud.google.com/dns/docs/policies#altns-targets
            internal_address=interface.get("networkIP"),
            proxy_command=iap_proxy_command(self.project, zone, name, SSH_PORT) if self.iap else None,
        )

    def clusters(self, inventory: Inventory) -> list[Cluster]:
        """Every cluster of which something was found, by name."""
        names = {labels_of(each).get(LABEL_CLUSTER, "") for each in (*inventory.instances, *inventory.disks)}
        names |= {described_labels(each).get(LABEL_CLUSTER, "") for each in inventory.described}
        return [self.cluster(name, inventory) for name in sorted(names)]

    def cluster(self, name: str, inventory: Inventory, *, now: datetime | None = None) -> Cluster:
        """One cluster, of which something was found or is being made; its cost until `now` (None: the clock's time)."""
        instances = [vm for vm in inventory.instances if labels_of(vm).get(LABEL_CLUSTER) == name]
        # While labels are being changed the head's count: it has been there from the beginning.
        instances.sort(key=lambda vm: _index(str(vm["name"])))
        disks = [disk for disk in inventory.loose_disks if labels_of(disk).get(LABEL_CLUSTER) == name]
        firewalls, groups, placements, templates, requests = (
            [each for each in some if described_labels(each).get(LABEL_CLUSTER) == name]
            for some in (
                inventory.firewalls,
                inventory.groups,
                inventory.placements,
                inventory.templates,
                inventory.requests,
            )
        )
        operations = inventory.creating(name)
        told = (*groups, *templates, *placements, *firewalls)
        described = [*(labels_of(each) for each in (*instances, *disks)), *map(described_labels, told), {}]
        labels = described[0]
        in_flight = cluster_id_of(str(operations[0].get("clientOperationId", ""))) if operations else ""
        created = created_by(labels)
        if not labels and operations:
            created = moment(operations[0]["insertTime"]) or created
        metadata = metadata_of(instances[0]) if instances else {}
        bucket = metadata.get(METADATA_BUCKET, "")
        now = now or datetime.now(timezone.utc)
        money = costs(instances, disks, now=now)
        return Cluster(
            name=name,
            id=labels.get(LABEL_ID, in_flight),
            owner=labels.get(LABEL_OWNER, ""),
            provider="gce",
            created=created,
            expected_nodes=whole_number(labels.get(LABEL_NODES)),
            nodes=tuple(sorted((self.node(vm) for vm in instances), key=lambda node: (node.index, node.id))),
            image=metadata.get(METADATA_IMAGE, ""),
            # VMs may change their metadata, which then may name a folder of this machine.
            bucket=bucket if bucket.startswith("gs://") else "",
            other_objects=(
                *sorted(ClusterObject(ObjectKind.DISK, f"{zone_of(disk)}/{disk['name']}") for disk in disks),
                *sorted(ClusterObject(ObjectKind.FIREWALL, rule["name"]) for rule in firewalls),
                *sorted(ClusterObject(ObjectKind.PLACEMENT, each["name"]) for each in placements),
                *(ClusterObject(ObjectKind.GROUP, f"{zone_of(each)}/{each['name']}") for each in groups),
                *(ClusterObject(ObjectKind.TEMPLATE, each["name"]) for each in templates),
                *(described_request(each, now) for each in requests if each.get("state") in ACTIVE),
                *(described_operation(each) for each in operations),
            ),
            dollars_per_hour=money.dollars_per_hour,
            dollars_so_far=money.so_far,
            paid_until=money.paid_until,
            worst_case_dollars=money.worst_case,
            ends=money.ends,
            costs_since=money.since,
            cost_notes=money.notes,
            unseen=inventory.unseen,
        )


def node_state(instance: Resource) -> NodeState:
    """What a VM does."""
    return _STATES.get(instance.get("status", ""), NodeState.STOPPED)


def described_operation(operation: Resource) -> ClusterObject:
    """One that still makes something: `operation operation-… (bulkInsert in us-central1-a, under way)`."""
    place = zone_of(operation) or "global"
    text = f"{operation['name']} ({operation['operationType']} in {place}, under way)"
    return ClusterObject(ObjectKind.OPERATION, text)


def described_request(request: Resource, now: datetime) -> ClusterObject:
    """One that waits for room: `request us-central1-a/NAME (flex-start, ACCEPTED, for 12 min)`."""
    minutes = int((now - (moment(request.get("creationTimestamp")) or now)).total_seconds() // 60)
    text = f"{zone_of(request)}/{request['name']} (flex-start, {request['state']}, for {minutes} min)"
    return ClusterObject(ObjectKind.REQUEST, text)


def metadata_of(instance: Resource) -> dict[str, str]:
    """The metadata items of a VM."""
    return {item["key"]: item.get("value", "") for item in instance.get("metadata", {}).get("items", ())}


def _index(name: str) -> int:
    """bulkInsert gives all VMs the same labels, so the number is in the name."""
    return whole_number(name.rpartition("-")[2])
