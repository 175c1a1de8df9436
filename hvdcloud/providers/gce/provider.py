"""Nodes as VMs of Compute Engine, all of one zone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import LABEL_CLUSTER, Cluster, ClusterSpec, Leftover, Node, Plan, Request
from hvdcloud.errors import TeardownError
from hvdcloud.google.errors import explained
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.base import Listing, NodeBucket, OnProgress, Provider, UnseenError, ignore_progress
from hvdcloud.providers.gce import ssh_access
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.places import check_account, find_zones, vm_image
from hvdcloud.providers.gce.capacity.reservations import find_reservation
from hvdcloud.providers.gce.inventory import VMS, Inventory, take_inventory, why
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import region_of, zone_of
from hvdcloud.providers.gce.ops import scale_out
from hvdcloud.providers.gce.ops.create import Creation, GcePlan, first_requests, placement_request
from hvdcloud.providers.gce.ops.delete import Sweep
from hvdcloud.providers.gce.ops.ready import SILENT_SECONDS, SILENT_SECONDS_OF_8_GPUS, Boots
from hvdcloud.providers.gce.plan import budget, request
from hvdcloud.providers.gce.resource_mapper import ResourceMapper
from hvdcloud.providers.gce.settings import Settings, settings_of

if TYPE_CHECKING:
    from hvdcloud.config.gce import GceConfig
    from hvdcloud.config.model import LimitsConfig


class GceProvider(Provider):
    """VMs of one project.

    Args:
        config: which VMs, where, and who may reach them.
        limits: how long they may live.
        client: makes the API's client on first use; may raise CredentialsError or UsageError.
        elastic: runs are, and the head of Spot VMs is none.
    """

    name = "gce"
    ready_seconds = 1800.0

    def __init__(
        self, config: GceConfig, limits: LimitsConfig, *, client: Callable[[], ComputeClient], elastic: bool = False
    ) -> None:
        self._config = config
        self._limits = limits
        self._elastic = elastic
        self._connect = client

    def plan(self, spec: ClusterSpec) -> GcePlan:
        """The firewall rules, and the bulkInserts for the first zone: one for each kind of node.

        With flex-start an instance template, a group and its resize request instead of bulkInserts.

        Raises:
            UsageError: the settings contradict each other, or `limits.max_cost` pays for no zone.
            CapacityError, CredentialsError, NodeError: as `find_zones`.
        """
        now = datetime.now(timezone.utc)
        # Within what earlier attempts have left of the limits.
        settings = budget.limited(self._settings, spec.within, now=now)
        check_account(settings)
        allowed: Sequence[str] = self._config.zones
        if settings.provisioning == "reservation":
            settings, allowed = find_reservation(self._client, settings, nodes=spec.nodes, zones=allowed, now=now)
        found = find_zones(self._client, spec, settings, zones=allowed, today=now.date())
        image = vm_image(self._client, settings.machine_type)
        offers = budget.paid_zones(settings, found, nodes=spec.nodes)
        zones, worst = [offer.zone for offer in offers], [offer.worst_case_dollars for offer in offers]
        method = f"POST /compute/v1/projects/{settings.project}/global/firewalls"
        firewalls = tuple(
            Request(object=f"firewall {body['name']}", method=method, body=body)
            for body in request.firewall_bodies(spec, settings)
        )
        placement = placement_request(spec, settings, zones[0])
        return GcePlan(
            spec=spec,
            requests=(
                *firewalls,
                *([placement] if placement else []),
                *first_requests(spec, settings, zone=zones[0], vm_image=image),
            ),
            firewalls=firewalls,
            placement=placement,
            dollars_per_hour=offers[0].dollars_per_hour,
            worst_case_dollars=None if None in worst else max(filter(None, worst)),
            seconds=float(offers[0].seconds),
            notices=(
                *budget.notices(settings, offers, nodes=spec.nodes),
                *budget.traffic_notices(registry_region(spec.image), dict.fromkeys(map(region_of, zones))),
            ),
            settings=settings,
            zones=tuple(zones),
            vm_image=image,
        )

    def bucket_as_seen_by_nodes(self, bucket: str) -> NodeBucket:
        """VMs see a bucket under the name that the laptop uses."""
        return NodeBucket(bucket=bucket)

    def create(self, plan: Plan, *, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """All VMs in the first zone that has room for them, or none."""
        assert isinstance(plan, GcePlan)
        instances = Creation(self._client, plan, on_progress=on_progress).run()
        return sorted(map(self._mapper.node, instances), key=lambda node: node.index)

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> GcePlan:
        """A bulkInsert for each kind of node, in the zone where the cluster is; it has its firewall rules."""
        inventory, now = self._take_inventory(spec.name), datetime.now(timezone.utc)
        # A cluster that began with one node has no policy, and one that has stays close together.
        settings = replace(self._settings, placement=bool(inventory.only(spec.id).placements))
        image = vm_image(self._client, settings.machine_type)
        if settings.provisioning == "reservation":
            ours = list(dict.fromkeys(map(zone_of, inventory.only(spec.id).instances)))
            # The new nodes end with the others, whatever the limit says.
            unlimited = replace(settings, max_run_seconds=0)
            found, _ = find_reservation(self._client, unlimited, nodes=len(indices), zones=ours, now=now)
            settings = replace(settings, reservation_bound=found.reservation_bound)
        return scale_out.plan_growth(spec, settings, inventory, indices, vm_image=image, now=now)

    def grow(
        self, spec: ClusterSpec, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Stopped VMs of the same names are deleted first; then all VMs in the cluster's zone, or none."""
        plan = self.plan_growth(spec, indices)
        if stopped := scale_out.in_the_way(spec, self._take_inventory(spec.name), indices):
            sweep = Sweep(
                self._client, spec.name, cluster_id=spec.id, names=stopped, zones=plan.zones, on_progress=on_progress
            )
            if left := sweep.run():
                raise TeardownError(f"{left[0].object} is in the way: {left[0].reason}", hint=left[0].delete_with)
        return self.create(plan, on_progress=on_progress)

    def set_size(self, name: str, nodes: int) -> None:
        """On VMs and their disks; firewall rules, which have no labels, keep saying what `create` wrote."""
        with explained(f"label the VMs of {name}"):
            scale_out.set_size(self._client, name, self._take_inventory(name), nodes)

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Follow every VM's guest attributes until its container says that sshd answers."""
        cluster = nodes[0].name.rpartition("-")[0]
        settings, given = self._settings, self._config.ssh.source
        _, gpus = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)

        def check_reachable(node: Node) -> None:
            if settings.ssh_source != ssh_access.IAP and node.address:
                ssh_access.check_reachable(node.address, node.port, source=settings.ssh_source, given=given)

        boots = Boots(
            self._client,
            self._mapper,
            nodes,
            cluster=cluster,
            deadline=deadline,
            on_progress=on_progress,
            silence=SILENT_SECONDS if gpus < 8 else SILENT_SECONDS_OF_8_GPUS,
            check_reachable=check_reachable,
        )
        with explained(f"follow how the VMs of {cluster} come up"):
            return boots.wait()

    def cluster(self, name: str) -> Cluster | None:
        """From the labels of VMs and disks, the descriptions of firewall rules, and the operations under way."""
        inventory = self._take_inventory(name)
        if inventory.instances or inventory.disks or inventory.described or inventory.creating(name):
            return self._mapper.cluster(name, inventory)
        if inventory.unseen:
            raise UnseenError(
                f"nothing of {name} was found, but {', '.join(inventory.unseen)} did not answer",
                hint="run the command again, or look by hand: gcloud compute instances list "
                f"--project {self._client.project} --filter=labels.{LABEL_CLUSTER}={name}",
            )
        return None

    def list(self) -> Listing:
        """Every cluster of this project."""
        inventory = self._take_inventory(None)
        return Listing(clusters=tuple(self._mapper.clusters(inventory)), unseen=inventory.unseen)

    def _take_inventory(self, name: str | None) -> Inventory:
        inventory = take_inventory(self._client, name)
        with explained(f"look for {name or 'clusters'} in project {self._client.project}"):
            if VMS in inventory.failures:
                raise inventory.failures[VMS]
        # An account that may not see disks can still delete VMs: `disks (403 forbidden: …)` did not answer either.
        places = (f"{what} ({why(error)})" for what, error in sorted(inventory.failures.items()))
        return replace(inventory, unseen=(*inventory.unseen, *places), failures={})

    def destroy(self, name: str, *, on_progress: OnProgress = ignore_progress) -> Sequence[Leftover]:
        """VMs (those of a group with it) and firewall rules at once, then what stayed, until nothing is found."""
        return Sweep(self._client, name, on_progress=on_progress).run()

    def shrink(
        self, name: str, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Leftover]:
        """Their VMs, then disks that stayed; looked for again until nothing is found."""
        if not indices:
            return []
        names = {f"{name}-{index}" for index in indices}
        return Sweep(self._client, name, names=names, on_progress=on_progress).run()

    @cached_property
    def _client(self) -> ComputeClient:
        return self._connect()

    @cached_property
    def _settings(self) -> Settings:
        source = ssh_access.caller_source(self._config.ssh.source)
        project, elastic = self._client.project, self._elastic
        return settings_of(self._config, self._limits, project=project, elastic=elastic, ssh_source=source)

    @cached_property
    def _mapper(self) -> ResourceMapper:
        return ResourceMapper(project=self._client.project, iap=self._config.ssh.source == ssh_access.IAP)
