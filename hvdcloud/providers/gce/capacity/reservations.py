"""Machines that a project has reserved: which zone has them, whether they fit, and how they are asked for.

https://cloud.google.com/compute/docs/instances/reservations-consume
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.google.errors import explained
from hvdcloud.json_values import whole_number
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.money.costs import moment
from hvdcloud.providers.gce.names import last_segment, zone_of
from hvdcloud.providers.gce.plan.request import same_path
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.units import counted, some

Reservation = Mapping[str, Any]
"""As the API answers it."""


def find_reservation(
    client: ComputeClient, settings: Settings, *, nodes: int, zones: Sequence[str], now: datetime
) -> tuple[Settings, list[str]]:
    """The settings for nodes of `gce.reservation`, and its zones that fit.

    Args:
        zones: those that may be used; empty: any.

    Raises:
        UsageError: there is none of the name, or it does not fit; what would fit is named.
        CredentialsError, NodeError: it cannot be asked for.
    """
    wanted = settings.reservation or ""
    project, name = wanted.split("/")[1] if "/" in wanted else settings.project, last_segment(wanted)
    with explained(f"look for reservation {name} in project {project}"):
        found = client.reservations(project, name)
    if not found:
        hint = f"gcloud compute reservations list --project {project} shows those that there are"
        raise UsageError(f"gce.reservation: project {project} has no reservation {name}", hint=hint)
    wrong = {zone_of(each): list(_problems(each, settings, nodes=nodes, zones=zones, now=now)) for each in found}
    fitting = [each for each in found if not wrong[zone_of(each)]]
    if not fitting:
        said = "; ".join(problem for problems in wrong.values() for problem, _ in problems[:1])
        hints = dict.fromkeys(hint for problems in wrong.values() for _, hint in problems[:1])
        raise UsageError(f"gce.reservation {name} does not fit: {said}", hint=some(list(hints)))
    first = fitting[0]
    with explained(f"look for how reservation {name} was made"):
        bound = _is_bound(client, project, first)
    alike = [zone_of(each) for each in fitting if each.get("deploymentType") == first.get("deploymentType")]
    return replace(settings, reservation_bound=bound), alike


def _problems(
    reservation: Reservation, settings: Settings, *, nodes: int, zones: Sequence[str], now: datetime
) -> Iterator[tuple[str, str]]:
    """Why it does not fit, and what does."""
    zone, specific = zone_of(reservation), reservation.get("specificReservation", {})
    if zones and zone not in zones:
        yield f"it is in {zone}, and gce.zones names {some(zones)}", f"write gce.zones: [{zone}]"
    if reservation.get("status") != "READY":
        yield f"in {zone} it is {reservation.get('status')}", "wait until it is READY"
    own = specific.get("instanceProperties", {})
    machine_type = own.get("machineType", settings.machine_type)
    if machine_type != settings.machine_type:
        yield f"its machines are {machine_type}, not {settings.machine_type}", f"write gce.machine_type: {machine_type}"
    elif own and catalog.machine(machine_type).takes_gpus:
        gpus = [
            (each.get("acceleratorType"), each.get("acceleratorCount")) for each in own.get("guestAccelerators", ())
        ]
        kind, count = catalog.gpus_of(machine_type, settings.gpu_type, settings.gpu_count)
        if gpus != ([(kind, count)] if kind else []):
            has = " and ".join(f"{each} {one}" for one, each in gpus) or "no GPU"
            yield f"its machines have {has}", f"write gce.gpu for {has}"
    left = whole_number(specific.get("count")) - whole_number(specific.get("inUseCount"))
    if left < nodes:
        yield (
            f"in {zone} it has {left} of {counted(whole_number(specific.get('count')), 'machine')} free",
            (f"take nodes: {left}" if left > 0 else "wait until machines of it are free"),
        )
    ends = moment(reservation.get("deleteAtTime"))
    if ends and ends < now + timedelta(seconds=settings.max_run_seconds):
        minutes = max(0, int((ends - now).total_seconds() // 60))
        yield (
            f"it ends at {ends:%Y-%m-%d %H:%M}Z, before limits.max_run_duration",
            (f"write limits.max_run_duration: {minutes}m, or less"),
        )


def _is_bound(client: ComputeClient, project: str, reservation: Reservation) -> bool:
    """Whether its machines end with it and are asked for as RESERVATION_BOUND: a dense one, or one of calendar mode.

    A reservation does not say its mode; the future reservation that made it does.
    https://github.com/skypilot-org/skypilot/issues/9771
    """
    if reservation.get("deploymentType") == "DENSE":
        return True
    if not reservation.get("deleteAtTime"):
        return False
    for each in client.future_reservations(project, zone_of(reservation)):
        made = each.get("status", {}).get("autoCreatedReservations", ())
        ours = any(same_path(str(reservation.get("selfLink")), one) for one in made)
        if each.get("reservationMode") == "CALENDAR" and ours:
            return True
    return False
