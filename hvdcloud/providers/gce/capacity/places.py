"""Where a cluster can be made and from which VM image: the catalogue's rules, then what the API says.

Nothing is changed, and the number of calls is the same for 2 nodes and for 500. What the API does not tell, or only in
part, is taken to be as it should: `up` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.errors import CapacityError, UsageError
from hvdcloud.google.error_rules import QUOTAS_PAGE
from hvdcloud.google.errors import explained
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import continent, last_segment, region_of, zone_of
from hvdcloud.providers.gce.plan.budget import allowed_seconds, dollars_per_hour
from hvdcloud.providers.gce.plan.request import network_path, same_path
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings
from hvdcloud.units import counted, some

VM_IMAGE_FAMILY = ("cos-cloud", "cos-125-lts")
"""Project and family, supported until 2027-09: https://cloud.google.com/container-optimized-os/docs/release-notes"""

Quotas = Sequence[Mapping[str, Any]]
"""As `projects.get` and `regions.get` answer them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """What the API says of places and quotas."""

    places: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Machine type or GPU → the zones that have it, as far as that is known."""
    subnetwork_regions: Collection[str] | None = None
    """The regions that have the subnetwork whose name `gce.subnetwork` is; None: not known."""
    project_quotas: Quotas | None = None
    """None: quotas are not known."""
    regional_quotas: Mapping[str, Quotas] = field(default_factory=dict)

    def lacks(self, zone: str, needed: Sequence[str]) -> str | None:
        """Which of these machine types and GPUs a zone does not have; None: it has all, as far as is known."""
        return next((what for what in needed if zone not in self.places.get(what, [zone])), None)

    def zones(self, listed: Sequence[str], needed: Sequence[str]) -> list[str]:
        """The zones that have all of these: those of `listed` in their order, then others that the API names."""
        others: set[str] = set()
        if all(what in self.places for what in needed):
            others = set.intersection(*(set(self.places[what]) for what in needed)) - set(listed)
        return [*(zone for zone in listed if not self.lacks(zone, needed)), *sorted(others)]

    def regions(self, settings: Settings) -> Collection[str] | None:
        """The regions that have `gce.subnetwork`; None: any, as far as is known."""
        pinned = settings.subnetwork_region
        return self.subnetwork_regions if pinned is None else {pinned}

    def short(self, settings: Settings, *, nodes: int, region: str) -> str:
        """The quota of GPUs or of the project without room for a whole cluster in this region; empty: none.

        Of other quotas Compute Engine itself says within a second what is short, and the next region is tried.
        """
        gpu_type, gpu_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
        gpus = nodes * gpu_count
        vcpus = nodes * catalog.machine(settings.machine_type).vcpus
        found = [_short(self.project_quotas or (), ["CPUS_ALL_REGIONS"], vcpus)]
        if gpu_type:
            gpu = catalog.gpu(gpu_type)
            # Spot VMs may draw from either: https://cloud.google.com/compute/docs/instances/limit-vm-runtime#quota
            metrics = [gpu.quota] if settings.spot == "none" else [gpu.quota, gpu.spot_quota]
            found.append(_short(self.project_quotas or (), ["GPUS_ALL_REGIONS"], gpus))
            found.append(_short(self.regional_quotas.get(region, ()), metrics, gpus, f" in {region}"))
        return next(filter(None, found), "")


def _short(quotas: Quotas, metrics: Sequence[str | None], needed: int, where: str = "") -> str:
    """`NVIDIA_T4_GPUS 2 needed, 1 of 1 free`; empty: there is room, or the API does not tell."""
    held = [quota for quota in quotas if quota["metric"] in metrics]
    limit = sum(float(quota.get("limit", 0)) for quota in held)
    free = limit - sum(float(quota.get("usage", 0)) for quota in held)
    if not held or free >= needed:
        return ""
    return f"{held[0]['metric']} {needed} needed, {max(0.0, free):g} of {limit:g} free{where}"


def ask(client: ComputeClient, settings: Settings, *, machines: Sequence[str], gpus: Sequence[str]) -> Available:
    """Ask all at once for quotas, and for the zones that have these machine types and GPUs.

    Raises HvdcloudError: something is not answered.
    """
    subnetwork = settings.subnetwork_name
    questions: list[Callable[[], Any]] = [
        client.get_project,
        client.regions,
        lambda: client.machine_types(machines),
        lambda: client.accelerator_types(gpus) if gpus else Aggregated(items=[]),
        lambda: client.subnetworks(subnetwork) if subnetwork else None,
    ]
    with explained(f"ask project {client.project} for its quotas and machines"):
        answers = side_by_side(lambda question: question(), questions, only_reads=True)
    project, regions, *lists = answers
    # A list in which a place is missing says nothing.
    machine_list, gpu_list, subnetworks = (None if found is None or found.unseen else found.items for found in lists)
    places: dict[str, set[str]] = {}
    for names, items in ((machines, machine_list), (gpus, gpu_list)):
        if items is not None:
            places |= {name: {zone_of(item) for item in items if item["name"] == name} for name in names}
    subnetwork_regions = None
    if subnetworks is not None:
        network = network_path(settings)
        mine = [each for each in subnetworks if same_path(str(each["network"]), network)]
        subnetwork_regions = {last_segment(each["region"]) for each in mine}
    return Available(
        places=places,
        subnetwork_regions=subnetwork_regions,
        project_quotas=project.get("quotas", ()),
        regional_quotas={str(region["name"]): region.get("quotas", ()) for region in regions},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where nodes can be made."""

    zones: list[str]
    """Those that have what a node needs, and quota for all nodes, in the order to try."""
    left_out: str
    """The regions that have the machines and no quota, in words; empty: none."""


def find_places(
    client: ComputeClient, spec: ClusterSpec, settings: Settings, *, zones: Sequence[str], today: date
) -> Places:
    """Where `spec` can be made.

    Args:
        zones: `gce.zones`; empty: wherever the machine type and the GPU are, the cheapest first.
        today: decides which GPUs are still available.

    Raises:
        UsageError: as `check_settings`, when nothing is asked; a zone that the user named will not do.
        CapacityError: no zone has the machines, or no region the quota.
        CredentialsError, NodeError: the project cannot be asked.
    """
    check_settings(spec, settings, today=today)
    gpu, _ = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    attached = [gpu] if gpu and catalog.machine(settings.machine_type).takes_gpus else []
    needed = [*attached, settings.machine_type]
    available = ask(client, settings, machines=[settings.machine_type], gpus=attached)
    regions, what = available.regions(settings), " with ".join(filter(None, [settings.machine_type, gpu]))
    everywhere = available.zones(zones or catalog.zones_with(gpu), needed)
    there = [zone for zone in everywhere if regions is None or region_of(zone) in regions]
    if wrong := [f"{zone} has no {lacking}" for zone in zones if (lacking := available.lacks(zone, needed))]:
        hint = f"zones that have it: {some(there)}" if there else "take another GPU or machine type"
        raise UsageError(f"gce.zones: {', '.join(wrong)}", hint=hint)
    there = [zone for zone in there if not zones or zone in zones]
    if not there and regions is not None:
        of_zones = " of gce.zones" if zones else ""
        raise UsageError(
            f"gce.subnetwork {last_segment(settings.subnetwork or '')} is in {some(sorted(regions)) or 'no region'}, "
            f"where no zone{of_zones} has {what}",
            hint="hvdcloud setup --region REGION makes subnetworks; or correct gce.subnetwork or gce.zones",
        )
    if not there:
        raise CapacityError(f"no zone has {what}", hint="take another GPU or machine type")
    if not zones:
        home = registry_region(spec.image)

        def order(zone: str) -> tuple[float, bool, bool]:
            # Of regions that cost the same, that of the image comes first.
            far = home is not None and continent(zone) != continent(home)
            return dollars_per_hour(settings, range(spec.nodes), zone=zone), far, region_of(zone) != home

        there.sort(key=order)
    return _with_quota(available, spec, settings, there)


def _with_quota(available: Available, spec: ClusterSpec, settings: Settings, zones: Sequence[str]) -> Places:
    near = dict.fromkeys(map(region_of, zones))
    short = {region: available.short(settings, nodes=spec.nodes, region=region) for region in near}
    roomy = [zone for zone in zones if not short[region_of(zone)]]
    left_out = some([*dict.fromkeys(filter(None, short.values()))])
    if not roomy:
        raise CapacityError(
            f"project {settings.project} has no quota for {counted(spec.nodes, 'node')}: {left_out}",
            hint=f"ask for more at {QUOTAS_PAGE.format(project=settings.project)}, or use fewer nodes or GPUs",
        )
    return Places(zones=roomy, left_out=left_out)


def vm_image(client: ComputeClient) -> str:
    """The boot disk's image, `projects/P/global/images/NAME`. Raises HvdcloudError: it is not told."""
    with explained(f"find the VM image {VM_IMAGE_FAMILY[1]}"):
        link = str(client.image_from_family(*VM_IMAGE_FAMILY)["selfLink"])
    return link[link.index("projects/") :]


def check_settings(spec: ClusterSpec, settings: Settings, *, today: date) -> None:
    """Raises UsageError: the settings themselves are wrong. Nothing is asked."""
    machine_type = settings.machine_type
    if problem := catalog.problem(machine_type, settings.gpu_type, settings.gpu_count, today=today):
        raise problem
    allowed_seconds(settings, range(spec.nodes))
    if catalog.machine(machine_type).spot_only and settings.spot != "all":
        raise UsageError(f"{machine_type} is available as a Spot VM only", hint="write gce.spot: all")


def check_account(settings: Settings) -> None:
    """Raises UsageError: no account is named. Nodes get the project's default account only where that is written: in
    many projects it is an editor of everything, and so would be the job, with all that it imports."""
    if settings.service_account:
        return
    message = "gce.service_account is not set: a job could do all that the project's default account may"
    hint = f"hvdcloud setup makes an account that may do little; or write gce.service_account: {DEFAULT_ACCOUNT}"
    raise UsageError(message, hint=hint)
