"""Whether a cluster can be made, where, and from which VM image: the catalogue's rules, then what the API says.

Nothing is changed, and the number of calls is the same for 2 nodes and for 500. What the API does not tell (quotas it
leaves out, a zone that does not answer) is assumed to be fine: `up` finds out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from hvdcloud.checks import (
    Finding,
    NoAnswerError,
    Status,
    failed,
    failure,
    fine,
    unknown,
    warning,
)
from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY, ClusterSpec
from hvdcloud.errors import CapacityError, CredentialsError, NodeError, UsageError
from hvdcloud.google.error_rules import QUOTAS_PAGE
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.capacity.availability import Availability, ask, zone_candidates
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import last_segment, region_of, zone_of
from hvdcloud.providers.gce.plan.budget import allowed_seconds
from hvdcloud.providers.gce.plan.request import network_path
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings
from hvdcloud.units import counted, some

VM_IMAGE_FAMILY = ("cos-cloud", "cos-125-lts")
"""Project and family, supported until 2027-09: https://cloud.google.com/container-optimized-os/docs/release-notes"""
NAMES_CHECKED = 32
"""Names fit into one request's filter; that a later one is taken, `up` finds out by itself."""
PLACES_NAMED = 8

_QUESTIONS = {
    "zones": ("machine_types", "gpu_types", "subnetworks"),
    "quota": ("project", "regions"),
    "name": ("namesakes",),
    "VM image": ("image",),
}
"""What is found → what is asked for it; the names are those of `doctor`'s checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What was found."""

    findings: Mapping[str, Finding]
    """One for each of `_QUESTIONS`; a warning about the name: a cluster of this name exists."""
    zones: list[str]
    """Those that have what a node needs, and room for all nodes, in the order to try."""
    vm_image: str
    """`projects/P/global/images/NAME`; empty: it could not be found."""
    available: Availability

    @property
    def problems(self) -> list[Finding]:
        """Why it cannot be planned; none of them: go. Names are taken when nodes are made."""
        problems: dict[str, Finding] = {}
        for what, finding in self.findings.items():
            final = finding.error is not NoAnswerError or what == "VM image"
            if what != "name" and finding.status is Status.FAILED and final:
                # No permission is said once.
                problems.setdefault(finding.hint, finding)
        return [*problems.values()]

    @property
    def notices(self) -> list[str]:
        """What was not answered, which is left for `create` to find out."""
        said = {problem.hint for problem in self.problems}
        return [error.message for error in self.available.failures.values() if error.hint not in said]


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
    names = [spec.node_name(index) for index in range(min(spec.nodes, NAMES_CHECKED))]
    available = ask(
        client,
        settings,
        machines=[settings.machine_type],
        gpus=_attached(settings),
        doing=lambda what: f"read the {what.replace('_', ' ')} of {client.project}",
        others={
            "image": lambda: client.image_from_family(*VM_IMAGE_FAMILY),
            "namesakes": lambda: client.instances_named(names),
        },
    )
    home, image = registry_region(spec.image), available.answers["image"]
    places = zone_candidates(settings, nodes=spec.nodes, zones=zones, available=available, home=home)
    here, of_zones = _zones(available, settings, places, chosen=bool(zones))
    roomy, of_quota = _quotas(available, spec, settings, here)
    of_name = _namesakes(available.answers["namesakes"], spec, here)
    of_image = fine(f"{(image or {}).get('name')}, on a disk of {settings.disk_gb} GB")
    findings = dict(zip(_QUESTIONS, (of_zones, of_quota, of_name, of_image), strict=True))
    for what, questions in _QUESTIONS.items():
        # One that was not asked has no answer either.
        silent = all(available.answers.get(question) is None for question in questions)
        for question in questions:
            error = available.failures.get(question)
            if error and (silent or isinstance(error, CredentialsError)):
                findings[what] = failure(error)
                if isinstance(error, NodeError):
                    findings[what] = replace(findings[what], error=NoAnswerError)
    return Outlook(
        findings=findings,
        zones=roomy,
        vm_image=image_path(image) if image else "",
        available=available,
    )


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


def _attached(settings: Settings) -> list[str]:
    """The GPU that is attached to the machine type; empty: none, or it comes with it."""
    attached = catalog.machine(settings.machine_type).takes_gpus and settings.gpu_count
    return [settings.gpu_type] if attached and settings.gpu_type else []


def _zones(
    available: Availability, settings: Settings, places: Sequence[str], *, chosen: bool
) -> tuple[list[str], Finding]:
    """The zones that have what a node needs, and what is to be said of them.

    Args:
        places: configured, or the catalogue's.
        chosen: the user named them, so that one which never would do is a problem.
    """
    needed, regions = [*_attached(settings), settings.machine_type], available.regions(settings)
    if regions is not None and not regions:
        network = last_segment(network_path(settings))
        message = f"network {network} has no subnetwork {settings.subnetwork} in any region"
        return [], failed(message, hint="hvdcloud setup makes them; or correct gce.subnetwork")
    if chosen and not places:
        there = f"regions {some(sorted(regions or ()))}" if len(regions or ()) > 1 else "region"
        return [], failed(f"no zone of gce.zones is in gce.subnetwork's {there}", hint="correct one of the two")
    lacks = {zone: missing for zone in places if (missing := available.lacks(zone, needed))}
    known = [zone for zone in places if zone not in lacks]
    everywhere = [zone for zone in available.zones(places, needed) if regions is None or region_of(zone) in regions]
    gpu, _ = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    what = f"{settings.machine_type} with {gpu}" if gpu else settings.machine_type
    if not chosen:
        # Zones that are newer than the catalogue; without an answer about the machine types nothing is known of them.
        if settings.machine_type in available.places:
            known += [zone for zone in sorted(everywhere) if zone not in known]
        if not known:
            where = f" of the {counted(len(regions), 'region')} with gce.subnetwork" if regions else ""
            hint = "take another GPU or machine type"
            return [], failed(f"no zone{where} has {what}", hint=hint, error=CapacityError)
        return known, fine(f"{some(known, most=4)}: {what}")
    if lacks:
        hint = f"zones that have it: {some(sorted(everywhere))}" if everywhere else "take another GPU or machine type"
        wrong = ", ".join(f"{zone} has no {lacking}" for zone, lacking in lacks.items())
        return known, failed(f"gce.zones: {wrong}", hint=hint)
    return known, fine(f"{some(known, most=4)}: {what}")


def _quotas(
    available: Availability, spec: ClusterSpec, settings: Settings, zones: Sequence[str]
) -> tuple[list[str], Finding]:
    """The zones whose regions have room for all nodes, and what is to be said of quotas."""
    hint = f"ask for more at {QUOTAS_PAGE.format(project=settings.project)}, or use fewer nodes or GPUs"
    nodes = counted(spec.nodes, "node")
    reasons: dict[str, str] = {}
    for region in dict.fromkeys(map(region_of, zones)):
        short = available.shortfalls(settings, nodes=spec.nodes, region=region)
        everywhere = [each for each in short if not each.regional]
        said = [f"{e.metric} {e.needed} needed, {e.free:g} of {e.limit:g} free" for e in everywhere or short]
        reason = ", ".join(said)
        if everywhere:
            message = f"project {settings.project} has no quota for {nodes}: {reason}"
            return [], failed(message, hint=hint, error=CapacityError)
        if short:
            reasons[region] = f"{region}: {reason}"
    if not zones:
        return [], unknown("not checked: no zones")
    roomy = [zone for zone in zones if region_of(zone) not in reasons]
    lines = "; ".join([*reasons.values()][:PLACES_NAMED])
    if len(reasons) > PLACES_NAMED:
        lines += f"; {len(reasons) - PLACES_NAMED} more"
    if not roomy:
        return [], failed(f"no region has quota for {nodes}: {lines}", hint=hint, error=CapacityError)
    message = f"room for {nodes} in {some(list(dict.fromkeys(map(region_of, roomy))), most=4)}"
    if lines:
        hint = "the other regions are tried; more quota is more places"
        return roomy, warning(f"{message}; left out for lack of quota: {lines}", hint=hint)
    return roomy, fine(message)


def _namesakes(answer: Aggregated | None, spec: ClusterSpec, zones: Sequence[str]) -> Finding:
    """VMs that have our nodes' names already: of a cluster of this name anywhere, of others where we would go."""
    for vm in sorted(answer.items if answer else [], key=lambda vm: str(vm["name"])):
        labels, zone = vm.get("labels", {}), zone_of(vm)
        if labels.get(LABEL_MANAGED_BY) == MANAGED_BY and labels.get(LABEL_CLUSTER) == spec.name:
            message = f"the cluster {spec.name} exists already ({vm['name']} in {zone})"
            hint = f"hvdcloud down --name {spec.name} deletes it; else take another --name"
            return warning(message, hint=hint)
        if zone in zones:
            message = f"a VM {vm['name']} that is not hvdcloud's exists in {zone}"
            return failed(message, hint="take another --name, or other gce.zones")
    return fine(f"no VM is called {spec.node_name(0)}")


def image_path(image: Mapping[str, Any]) -> str:
    """`projects/P/global/images/NAME` of an image."""
    link = str(image["selfLink"])
    return link[link.index("projects/") :]
