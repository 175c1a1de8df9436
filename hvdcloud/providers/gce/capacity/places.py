"""Where a cluster can be made and from which VM image: the catalogue's zones, and where the API has quota for them.

Nothing is changed, and the number of calls is the same for 2 nodes and for 500. What the API does not tell, and whether
a zone has the machines just now, `up` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.errors import CapacityError, UsageError
from hvdcloud.google.error_rules import QUOTAS_PAGE
from hvdcloud.google.errors import explained
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import continent, last_segment, region_of
from hvdcloud.providers.gce.plan.budget import allowed_seconds, dollars_per_hour
from hvdcloud.providers.gce.plan.request import network_path, same_path
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, groups
from hvdcloud.units import counted, some

VM_IMAGE_PROJECT = "cos-cloud"

Quotas = Sequence[Mapping[str, Any]]
"""As `projects.get` and `regions.get` answer them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """What the API says of subnetworks and quotas."""

    subnetwork_regions: Collection[str] | None = None
    """The regions that have the subnetwork whose name `gce.subnetwork` is; None: not known."""
    project_quotas: Quotas | None = None
    """None: quotas are not known."""
    regional_quotas: Mapping[str, Quotas] = field(default_factory=dict)

    def near(self, zones: Iterable[str], settings: Settings) -> list[str]:
        """Those of these zones whose region has `gce.subnetwork`, as far as is known."""
        regions = self.regions(settings)
        return [zone for zone in zones if regions is None or region_of(zone) in regions]

    def regions(self, settings: Settings) -> Collection[str] | None:
        """The regions that have `gce.subnetwork`; None: any, as far as is known."""
        pinned = settings.subnetwork_region
        return self.subnetwork_regions if pinned is None else {pinned}

    def short(self, settings: Settings, *, nodes: int, region: str) -> str:
        """The quota of GPUs or of the project without room for a whole cluster in this region; empty: none.

        Of other quotas Compute Engine itself says within a second what is short, and the next region is tried.
        """
        if settings.provisioning == "reservation":
            # The reservation took its quota when it was made.
            # https://cloud.google.com/compute/docs/instances/reservations-overview
            return ""
        gpu_type, gpu_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
        gpus = nodes * gpu_count
        vcpus = nodes * catalog.machine(settings.machine_type).vcpus
        # A flex-start request waits for quota that is in use:
        # https://docs.cloud.google.com/compute/docs/instance-groups/create-resize-requests-mig
        short = partial(_short, queues=settings.flex_start)
        found = [short(self.project_quotas or (), ["CPUS_ALL_REGIONS"], vcpus)]
        if gpu_type:
            gpu = catalog.gpu(gpu_type)
            # Spot VMs may draw from either: https://cloud.google.com/compute/docs/instances/limit-vm-runtime#quota
            metrics = [gpu.quota, gpu.spot_quota] if settings.provisioning == "spot" else [gpu.quota]
            if settings.flex_start:
                metrics = [gpu.spot_quota]
            found.append(short(self.project_quotas or (), ["GPUS_ALL_REGIONS"], gpus))
            found.append(short(self.regional_quotas.get(region, ()), metrics, gpus, f" in {region}"))
        return next(filter(None, found), "")


def _short(quotas: Quotas, metrics: Sequence[str | None], needed: int, where: str = "", *, queues: bool) -> str:
    """`NVIDIA_T4_GPUS 2 needed, 1 of 1 free`; empty: there is room, or the API does not tell.

    Args:
        queues: what others use now is waited for.
    """
    held = [quota for quota in quotas if quota["metric"] in metrics]
    limit = sum(float(quota.get("limit", 0)) for quota in held)
    free = limit - (0.0 if queues else sum(float(quota.get("usage", 0)) for quota in held))
    if not held or free >= needed:
        return ""
    return f"{held[0]['metric']} {needed} needed, {max(0.0, free):g} of {limit:g} free{where}"


def ask(client: ComputeClient, settings: Settings) -> Available:
    """Ask all at once for quotas and subnetworks. Raises HvdcloudError: something is not answered."""
    # A URL says its region itself.
    name = settings.subnetwork if settings.subnetwork and "/" not in settings.subnetwork else None
    questions: list[Callable[[], Any]] = [
        client.get_project,
        client.regions,
        lambda: client.subnetworks(name) if name else None,
    ]
    with explained(f"ask project {client.project} for its quotas"):
        project, regions, found = side_by_side(lambda question: question(), questions, only_reads=True)
    subnetwork_regions = None
    # A list in which a place is missing says nothing.
    if found is not None and not found.unseen:
        network = network_path(settings)
        mine = [each for each in found.items if same_path(str(each["network"]), network)]
        subnetwork_regions = {last_segment(each["region"]) for each in mine}
    return Available(
        subnetwork_regions=subnetwork_regions,
        project_quotas=project.get("quotas", ()),
        regional_quotas={str(region["name"]): region.get("quotas", ()) for region in regions},
    )


def find_zones(
    client: ComputeClient, spec: ClusterSpec, settings: Settings, *, zones: Sequence[str], today: date
) -> list[str]:
    """The zones with quota for `spec`, in the order to try.

    Args:
        zones: `gce.zones`; empty: the catalogue's, the cheapest first.
        today: decides which GPUs are still available.

    Raises:
        UsageError: as `check_settings`, when nothing is asked; or `gce.subnetwork` is in none of the zones.
        CapacityError: no region has the quota.
        CredentialsError, NodeError: the project cannot be asked.
    """
    check_settings(spec, settings, today=today)
    if settings.provisioning == "reservation":
        # Where it is, and that it takes no quota, its own description has said: capacity/reservations.py.
        return list(zones)
    gpu, _ = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    available = ask(client, settings)
    there = available.near(zones or catalog.zones_with(gpu), settings)
    if not zones and not catalog.zones_with(gpu):
        raise UsageError(f"no zone is known to have {gpu}", hint="write gce.zones, such as [us-central1-b]")
    if not there:
        regions = some(sorted(available.regions(settings) or ())) or "no region"
        raise UsageError(
            f"gce.subnetwork {last_segment(settings.subnetwork or '')} is in {regions}, and no zone of "
            f"{'gce.zones' if zones else gpu or settings.machine_type} is there",
            hint="hvdcloud setup --region REGION makes subnetworks; or correct gce.subnetwork or gce.zones",
        )
    if not zones:
        home = registry_region(spec.image)

        def order(zone: str) -> tuple[float, bool, bool]:
            # Of regions that cost the same, that of the image comes first.
            far = home is not None and continent(zone) != continent(home)
            return dollars_per_hour(settings, range(spec.nodes), zone=zone) or 0.0, far, region_of(zone) != home

        there.sort(key=order)
    near = dict.fromkeys(map(region_of, there))
    short = {region: available.short(settings, nodes=spec.nodes, region=region) for region in near}
    if roomy := [zone for zone in there if not short[region_of(zone)]]:
        return roomy
    said = some([*dict.fromkeys(short.values())])
    raise CapacityError(
        f"project {settings.project} has no quota for {counted(spec.nodes, 'node')}: {said}",
        hint=f"ask for more at {QUOTAS_PAGE.format(project=settings.project)}, or use fewer nodes or GPUs",
    )


def vm_image(client: ComputeClient, machine_type: str) -> str:
    """The image of a machine type, `projects/P/global/images/NAME`. Raises HvdcloudError: it is not told."""
    family = catalog.machine(machine_type).vm_image
    with explained(f"find the VM image {family}"):
        link = str(client.image_from_family(VM_IMAGE_PROJECT, family)["selfLink"])
    return link[link.index("projects/") :]


def check_settings(spec: ClusterSpec, settings: Settings, *, today: date) -> None:
    """Raises UsageError: the settings themselves are wrong. Nothing is asked."""
    machine_type = settings.machine_type
    if problem := catalog.problem(machine_type, settings.gpu_type, settings.gpu_count, today=today):
        raise problem
    allowed_seconds(settings, range(spec.nodes))
    if settings.flex_start and not catalog.machine(machine_type).flex:
        message = f"gce.provisioning: flex-start is not for {machine_type}, but for A2, A3, A4 and G2"
        raise UsageError(message, hint="write gce.gpu: {type: nvidia-l4} without gce.machine_type, or a type of these")
    ways = {group.kind.provisioning for group in groups(settings, range(spec.nodes))}
    if catalog.machine(machine_type).spot_only and not ways <= {"spot", "flex-start"}:
        hint = "write gce.provisioning: spot"
        if settings.provisioning == "spot":
            hint = "take another gce.machine_type: with run.elastic the head is on demand; or write run.retry instead"
        raise UsageError(f"{machine_type} is available as a Spot or flex-start VM only", hint=hint)


def check_account(settings: Settings) -> None:
    """Raises UsageError: no account is named. Nodes get the project's default account only where that is written: in
    many projects it is an editor of everything, and so would be the job, with all that it imports."""
    if settings.service_account:
        return
    message = "gce.service_account is not set: a job could do all that the project's default account may"
    hint = f"hvdcloud setup makes an account that may do little; or write gce.service_account: {DEFAULT_ACCOUNT}"
    raise UsageError(message, hint=hint)
