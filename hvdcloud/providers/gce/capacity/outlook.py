"""Whether a cluster can be made, where, and from which VM image: the catalogue's rules, then what the API says.

Nothing is changed, and the number of calls is the same for 2 nodes and for 500. What the API does not tell (quotas it
leaves out, a zone that does not answer) is assumed to be fine: `up` finds out by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from hvdcloud.checks import Finding, failed, failure, first_of, warning
from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY, ClusterSpec
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, UsageError
from hvdcloud.google.error_rules import QUOTAS_PAGE
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.capacity import candidates, quota
from hvdcloud.providers.gce.capacity.candidates import Availability, zone_candidates
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import region_of, zone_of
from hvdcloud.providers.gce.plan.request import network_path
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, groups
from hvdcloud.units import counted

VM_IMAGE_FAMILY = ("cos-cloud", "cos-125-lts")
"""Project and family, supported until 2027-09: https://cloud.google.com/container-optimized-os/docs/release-notes"""
NAMES_CHECKED = 32
"""Names fit into one request's filter; that a later one is taken, `up` finds out by itself."""
PLACES_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What was found, one subject after the other."""

    available: Availability
    answers: Mapping[str, Any]
    """By question: project, regions, zones, image, namesakes, machine_types, gpu_types; None: not answered."""
    failures: Mapping[str, HvdcloudError]
    """Why questions were not answered."""
    here: list[str]
    """The zones that have what a node needs, in the order to try."""
    missing: list[Finding]
    """Why others do not."""
    closed: list[str]
    """What was left out of them, for the user."""
    roomy: list[str]
    """Those whose regions have quota for all nodes."""
    short: list[Finding]
    scarce: list[str]
    """What was left out of them for lack of quota, for the user."""
    namesakes: list[Finding]
    """VMs that have our nodes' names; a warning: those of a cluster of this name."""
    image: list[Finding]

    @property
    def problems(self) -> list[Finding]:
        """Why it cannot be planned; none of them: go. Names are taken when nodes are made."""
        final = [error for what, error in self.failures.items() if _is_final(what, error)]
        # No permission is said once.
        refused = {error.hint: failure(error) for error in final}
        return [*refused.values(), *self.missing, *self.short, *self.image]

    @property
    def notices(self) -> list[str]:
        """What was not answered, which is left for `create` to find out."""
        said = {problem.hint for problem in self.problems}
        return [error.message for error in self.failures.values() if error.hint not in said]

    @property
    def vm_image(self) -> str:
        """`projects/P/global/images/NAME`; empty: it could not be found."""
        return image_path(self.answers["image"]) if self.answers["image"] else ""


def look_ahead(
    client: ComputeClient, spec: ClusterSpec, settings: Settings, *, zones: Sequence[str], today: date
) -> Outlook:
    """What prevents `spec`, and if nothing does, where and from which image to make it.

    Args:
        zones: `gce.zones`; empty: wherever the machine type and the GPU are.
        today: decides which GPUs are still available.

    Raises UsageError: as `check_settings`; nothing is asked.
    """
    check_settings(spec, settings, today=today)
    machines, gpus = _asked_for(settings, spec)
    names = [spec.node_name(index) for index in range(min(spec.nodes, NAMES_CHECKED))]
    asked: dict[str, Callable[[], Any]] = {
        **candidates.questions(client, settings, machines=machines, gpus=gpus),
        "zones": client.zones,
        "image": lambda: client.image_from_family(*VM_IMAGE_FAMILY),
        "namesakes": lambda: client.instances_named(names),
    }
    answers, failures = candidates.ask_all(
        asked,
        doing=lambda what: f"read the {what.replace('_', ' ')} of {client.project}",
    )
    available = candidates.availability(answers, settings, machines=machines, gpus=gpus)
    home = registry_region(spec.image)
    places = zone_candidates(settings, nodes=spec.nodes, zones=zones, available=available, home=home)
    here, missing, closed = _zones(available, spec, settings, places, chosen=bool(zones))
    roomy, short, scarce = _quotas(available, spec, settings, here)
    return Outlook(
        available=available,
        answers=answers,
        failures=failures,
        here=here,
        missing=missing,
        closed=closed,
        roomy=roomy,
        short=short,
        scarce=scarce,
        namesakes=_namesakes(answers["namesakes"], spec, here),
        image=_image(answers["image"], settings),
    )


def check_settings(spec: ClusterSpec, settings: Settings, *, today: date) -> None:
    """Raises UsageError: the settings themselves are wrong. Nothing is asked."""
    if problems := wrong_kinds(settings, today=today):
        raise first_of(problems).as_error()
    quota.needs(settings, nodes=spec.nodes)
    for kind in kinds(settings, spec):
        if catalog.machine(kind.machine_type).spot_only and not kind.spot:
            raise UsageError(f"{kind.machine_type} is available as a Spot VM only", hint="write gce.spot: all")


def check_account(settings: Settings) -> None:
    """Raises UsageError: no account is named. Nodes get the project's default account only where that is written: in
    many projects it is an editor of everything, and so would be the job, with all that it imports."""
    if settings.service_account:
        return
    message = "gce.service_account is not set: a job could do all that the project's default account may"
    hint = f"hvdcloud setup makes an account that may do little; or write gce.service_account: {DEFAULT_ACCOUNT}"
    raise UsageError(message, hint=hint)


def wrong_kinds(settings: Settings, *, today: date) -> list[Finding]:
    """Why no VM of a configured kind can be made."""
    return catalog.check(settings.machine_type, settings.gpu_type, settings.gpu_count, today=today)


def kinds(settings: Settings, spec: ClusterSpec) -> list[NodeKind]:
    """What the nodes are, the head's kind last where it is another."""
    return [group.kind for group in groups(settings, range(spec.nodes))]


def needed_of_zone(settings: Settings, spec: ClusterSpec) -> str:
    """What a zone has to have: `n1-standard-8 with nvidia-tesla-t4 and n1-standard-2`."""
    found = [" with ".join(filter(None, (kind.machine_type, kind.gpus[0]))) for kind in kinds(settings, spec)]
    return " and ".join(dict.fromkeys(found))


def _asked_for(settings: Settings, spec: ClusterSpec) -> tuple[list[str], list[str]]:
    """The machine types and the GPUs that a zone has to have, those that the API can be asked for."""
    found = [(catalog.machine(kind.machine_type), kind) for kind in kinds(settings, spec)]
    machines = [machine.name for machine, _ in found]
    gpus = [kind.gpu_type for machine, kind in found if machine.takes_gpus and kind.gpu_type and kind.gpu_count]
    return list(dict.fromkeys(machines)), list(dict.fromkeys(gpus))


def _is_final(question: str, error: HvdcloudError) -> bool:
    """Whether a question that was not answered stops a plan: no permission, or an image that cannot be found."""
    return isinstance(error, CredentialsError) or question == "image"


def _zones(
    available: Availability, spec: ClusterSpec, settings: Settings, places: Sequence[str], *, chosen: bool
) -> tuple[list[str], list[Finding], list[str]]:
    """The zones that have what a node needs; why others of the user's own choice have not; what was left out.

    Args:
        places: configured, or the catalogue's.
        chosen: the user named them, so that one which never would do is a problem.
    """
    machines, gpus = _asked_for(settings, spec)
    status = available.status
    lacking = {zone: available.lacks(zone, machines=machines, gpus=gpus) for zone in places}
    lacks = {zone: f"{zone} has no {what}" for zone, what in lacking.items() if what}
    lacks |= {zone: f"there is no zone {zone}" for zone in places if status and zone not in status}
    down = {zone: f"{zone} is down" for zone in places if zone in status and zone not in available.up}
    known = [zone for zone in places if zone not in lacks | down]
    regions = candidates.allowed_regions(settings, available)
    if regions is not None and not regions:
        network = network_path(settings).rpartition("/")[2]
        message = f"network {network} has no subnetwork {settings.subnetwork} in any region"
        return [], [failed(message, hint="hvdcloud setup makes them; or correct gce.subnetwork")], []
    if chosen and not places:
        there = f"regions {_some(sorted(regions or ()))}" if len(regions or ()) > 1 else "region"
        problem = failed(f"no zone of gce.zones is in gce.subnetwork's {there}", hint="correct one of the two")
        return [], [problem], []
    everywhere = available.zones(places, machines=machines, gpus=gpus)
    everywhere = [zone for zone in everywhere if regions is None or region_of(zone) in regions]
    if chosen:
        hint = f"zones that have it: {_some(sorted(everywhere))}" if everywhere else "take another GPU or machine type"
        wrong = [reason for zone, reason in lacks.items() if zone not in down]
        problems = [failed(f"gce.zones: {reason}", hint=hint) for reason in wrong]
        closed = ", ".join(down.values())
        if closed and not known:
            problems.append(failed(f"gce.zones: {closed}", hint=hint, error=CapacityError))
        return known, problems, [f"left out: {closed}"] if closed else []
    # Zones that are newer than the catalogue; without an answer about the machine types nothing is known of them.
    if available.machine_zones is not None:
        known += [zone for zone in sorted(everywhere) if zone not in known]
    if known:
        return known, [], []
    where = f" of the {counted(len(regions), 'region')} with gce.subnetwork" if regions else ""
    message = f"no zone{where} has {needed_of_zone(settings, spec)}"
    hint = "take another GPU or machine type"
    return [], [failed(message, hint=hint, error=CapacityError)], []


def _quotas(
    available: Availability, spec: ClusterSpec, settings: Settings, zones: Sequence[str]
) -> tuple[list[str], list[Finding], list[str]]:
    """The zones whose regions have room for all nodes; why none has; what was left out."""
    short = {
        region: available.shortfalls(settings, nodes=spec.nodes, region=region)
        for region in dict.fromkeys(map(region_of, zones))
    }
    hint = f"ask for more at {QUOTAS_PAGE.format(project=settings.project)}, or use fewer nodes or GPUs"
    everywhere = {each.metric: each for found in short.values() for each in found if not each.regional}
    if everywhere:
        reason = ", ".join(map(_shortfall, everywhere.values()))
        message = f"project {settings.project} has no quota for {counted(spec.nodes, 'node')}: {reason}"
        return [], [failed(message, hint=hint, error=CapacityError)], []
    reasons = {region: ", ".join(map(_shortfall, found)) for region, found in short.items() if found}
    roomy = [zone for zone in zones if region_of(zone) not in reasons]
    lines = [f"{region}: {reason}" for region, reason in reasons.items()]
    if zones and not roomy:
        message = f"no region has quota for {counted(spec.nodes, 'node')}: {_some(lines, separator='; ')}"
        return [], [failed(message, hint=hint, error=CapacityError)], []
    return roomy, [], [f"left out for lack of quota: {_some(lines, separator='; ')}"] if lines else []


def _shortfall(short: quota.Shortfall) -> str:
    free = max(0.0, short.limit - short.usage)
    return f"{short.metric} {short.needed} needed, {free:g} of {short.limit:g} free"


def _namesakes(answer: Aggregated | None, spec: ClusterSpec, zones: Sequence[str]) -> list[Finding]:
    """VMs that have our nodes' names already: of a cluster of this name anywhere, of others where we would go."""
    found = answer.items if answer else []
    for vm in sorted(found, key=lambda vm: str(vm["name"])):
        labels, zone = vm.get("labels", {}), zone_of(vm)
        if labels.get(LABEL_MANAGED_BY) == MANAGED_BY and labels.get(LABEL_CLUSTER) == spec.name:
            message = f"the cluster {spec.name} exists already ({vm['name']} in {zone})"
            hint = f"hvdcloud down --name {spec.name} deletes it; else take another --name"
            return [warning(message, hint=hint)]
        if zone in zones:
            message = f"a VM {vm['name']} that is not hvdcloud's exists in {zone}"
            hint = "take another --name, or other gce.zones"
            return [failed(message, hint=hint)]
    return []


def _image(image: Mapping[str, Any] | None, settings: Settings) -> list[Finding]:
    least = int((image or {}).get("diskSizeGb", 0))
    if settings.disk_gb >= least:
        return []
    message = f"gce.disk_gb: {settings.disk_gb} GB are less than the VM image's {least} GB"
    return [failed(message, hint=f"write gce.disk_gb: {max(least, 50)}")]


def image_path(image: Mapping[str, Any]) -> str:
    """`projects/P/global/images/NAME` of an image."""
    link = str(image["selfLink"])
    return link[link.index("projects/") :]


def _some(texts: Iterable[str], *, separator: str = ", ") -> str:
    listed = list(texts)
    more = [f"{len(listed) - PLACES_NAMED} more"] if len(listed) > PLACES_NAMED else []
    return separator.join([*listed[:PLACES_NAMED], *more])
