"""Reservations: made by tests, consumed by VMs that name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements
from tests.standins.compute.errors import invalid, invalid_field
from tests.standins.compute.state import Workers

KEY = "compute.googleapis.com/reservation-name"


def add(
    world: Workers,
    name: str,
    *,
    zone: str,
    count: int,
    machine_type: str,
    gpus: Mapping[str, int],
    ends: str | None,
    dense: bool,
    calendar: bool,
) -> None:
    """`ends`: RFC 3339. `calendar`: a future reservation of calendar mode has made it."""
    reservation: dict[str, Any] = {
        **world.base("reservation", f"zones/{zone}/reservations", name),
        "zone": f"{world.root}/zones/{zone}",
        "status": "READY",
        "specificReservationRequired": True,
        "specificReservation": {
            "count": str(count),
            "inUseCount": "0",
            "instanceProperties": {
                "machineType": machine_type,
                "guestAccelerators": [
                    {"acceleratorType": gpu, "acceleratorCount": number} for gpu, number in gpus.items()
                ],
            },
        },
    }
    if ends is not None:
        reservation["deleteAtTime"] = ends
    if dense:
        reservation["deploymentType"] = "DENSE"
    world.reservations[zone][name] = reservation
    if calendar:
        future = {
            **world.base("futureReservation", f"zones/{zone}/futureReservations", f"{name}-made"),
            "reservationMode": "CALENDAR",
            "status": {"autoCreatedReservations": [reservation["selfLink"]]},
        }
        world.future_reservations[zone].append(future)


def _shown(world: Workers, zone: str, reservation: dict[str, Any]) -> dict[str, Any]:
    used = sum(_named(vm.resource) == reservation["name"] for vm in world.vms[zone].values())
    return {**reservation, "specificReservation": {**reservation["specificReservation"], "inUseCount": str(used)}}


def _named(properties: Mapping[str, Any]) -> str | None:
    affinity = properties.get("reservationAffinity", {})
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return None
    return str(affinity["values"][0]).rpartition("/")[2]


def check_reservation(world: Workers, properties: Mapping[str, Any], zone: str, *, count: int) -> None:
    """Raises ApiError, 400: the VMs name a reservation that is not there, or does not fit; the words are a guess."""
    model = properties.get("scheduling", {}).get("provisioningModel", "STANDARD")
    name = _named(properties)
    if name is None:
        if model == "RESERVATION_BOUND":
            raise invalid("Provisioning model RESERVATION_BOUND needs a specific reservation.")
        return
    affinity = properties["reservationAffinity"]
    if affinity.get("key") != KEY:
        raise invalid_field("resource.reservationAffinity.key", affinity.get("key"), f"Must be {KEY}.")
    reservation = world.reservations[zone].get(name)
    if reservation is None:
        raise invalid(f"Specified reservation {name} does not exist in zone {zone}.")
    specific = _shown(world, zone, reservation)["specificReservation"]
    if specific["instanceProperties"]["machineType"] != properties.get("machineType"):
        raise invalid(f"Specified reservation {name} does not match the VM's machine type.")
    if int(specific["count"]) - int(specific["inUseCount"]) < count:
        raise invalid(f"Specified reservation {name} does not have available resources for the request.")
    links = [link for each in world.future_reservations[zone] for link in each["status"]["autoCreatedReservations"]]
    bound = reservation.get("deploymentType") == "DENSE" or reservation["selfLink"] in links
    if (model == "RESERVATION_BOUND") != bound:
        raise invalid(f"Reservation {name} does not take the provisioning model {model}.")


@implements("reservations.aggregatedList")
def aggregate_reservations(call: Call) -> dict[str, Any]:
    world = call.world
    return call.aggregated(
        "reservations",
        "Reservation",
        (
            (f"zones/{zone}", _shown(world, zone, one))
            for zone, there in world.reservations.items()
            for one in there.values()
        ),
    )


@implements("futureReservations.list")
def list_future_reservations(call: Call) -> dict[str, Any]:
    path = call.url(f"zones/{call.zone}/futureReservations")
    items = call.world.future_reservations[call.zone]
    return lists.plain(call.page("FutureReservation"), items, kind="compute#futureReservationsListResponse", path=path)
