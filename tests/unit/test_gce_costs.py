"""What VMs have cost and will have cost at worst, to the cent.

What is expected is summed up by hand from the prices of tests/support/price_table.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.providers.gce.money.costs import Costs, costs
from tests.support.price_table import DISK, DISK_WEST, NODE, write_prices

ROOT = "https://compute.googleapis.com/compute/v1/projects/p"
BORN = datetime(2026, 11, 20, 10, 0, 0, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def prices(state_root: Path) -> None:
    write_prices(state_root)


def at(**after: float) -> datetime:
    return BORN + timedelta(**after)


def text(moment: datetime) -> str:
    """As Compute Engine writes it: with thousandths, in Pacific time."""
    return moment.astimezone(timezone(timedelta(hours=-8))).isoformat(timespec="milliseconds")


def vm(name: str = "digits-0", *, zone: str = "us-central1-a", ends: datetime | None = None, **changes: Any) -> Any:
    """It runs; `ends`: when its time is up."""
    resource = {
        "name": name,
        "zone": f"{ROOT}/zones/{zone}",
        "status": "RUNNING",
        "creationTimestamp": text(BORN),
        "lastStartTimestamp": text(BORN),
        "machineType": f"{ROOT}/zones/{zone}/machineTypes/n1-standard-2",
        "guestAccelerators": [
            {"acceleratorType": f"{ROOT}/zones/{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
        ],
        "scheduling": {
            "provisioningModel": "STANDARD",
            "instanceTerminationAction": "DELETE",
            "maxRunDuration": {"seconds": "7200"},
        },
        "disks": [{"source": f"{ROOT}/zones/{zone}/disks/{name}", "diskSizeGb": "100", "autoDelete": True}],
        "networkInterfaces": [{"networkIP": "10.128.0.2", "accessConfigs": [{"natIP": "198.18.0.1"}]}],
    }
    if ends is not None:
        resource["resourceStatus"] = {"scheduling": {"terminationTimestamp": text(ends)}}
    return {**resource, **changes}


def disk(name: str = "digits-0", *, zone: str = "us-central1-a") -> Any:
    return {"name": name, "zone": f"{ROOT}/zones/{zone}", "sizeGb": "100", "creationTimestamp": text(BORN)}


def cents(found: Costs) -> tuple[float, float | None]:
    """So far and at worst."""
    assert found.so_far is not None
    return round(found.so_far, 2), None if found.worst_case is None else round(found.worst_case, 2)


def test_two_nodes_after_forty_minutes_of_two_hours() -> None:
    ends = at(hours=2, seconds=10)
    found = costs([vm(ends=ends), vm("digits-1", ends=ends)], [], now=at(minutes=40))
    assert found.dollars_per_hour == pytest.approx(0.92)
    # 0.92 x 40 / 60 = 0.6133; until 12:00:10 and half a minute more it is 7240 s: 0.92 x 7240 / 3600 = 1.8502
    assert cents(found) == (0.61, 1.85)
    assert found.so_far == pytest.approx(0.92 * 2400 / 3600)
    assert found.worst_case == pytest.approx(0.92 * 7240 / 3600)
    assert (found.ends, found.since, found.notes) == (ends, BORN, ())


def test_every_gpu_of_a_vm_is_counted() -> None:
    gpus = [{"acceleratorType": f"{ROOT}/zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 4}]
    found = costs([vm(ends=at(hours=1), guestAccelerators=gpus)], [], now=at(minutes=30))
    # As with one GPU, and three more at 0.35.
    assert found.dollars_per_hour == pytest.approx(NODE + 3 * 0.35)
    assert found.so_far == pytest.approx((NODE + 3 * 0.35) / 2)


def test_a_cluster_ends_when_the_last_of_its_vms_does() -> None:
    found = costs([vm(ends=at(hours=3)), vm("digits-1", ends=at(hours=1))], [], now=at(minutes=30))
    assert found.ends == at(hours=3)
    # 3 h and 1 h, each with half a minute more.
    assert found.worst_case == pytest.approx(NODE * (4 * 3600 + 2 * 30) / 3600)


def test_head_and_workers_each_cost_their_own_price() -> None:
    spot = {**vm()["scheduling"], "provisioningModel": "SPOT"}
    small: dict[str, Any] = {
        "machineType": f"{ROOT}/zones/us-central1-a/machineTypes/n1-standard-1",
        "guestAccelerators": [],
    }
    ends = at(hours=1)
    workers = [vm(f"digits-{index}", ends=ends, scheduling=spot) for index in (1, 2, 3)]
    # A head like the others, on demand: 0.46 + 3 x 0.15; a small one: 0.030 + 3.75 x 0.004 + 0.010 + 0.010 = 0.065
    for head, hourly in ((vm(ends=ends), 0.91), (vm(ends=ends, **small), 0.515)):
        found = costs([head, *workers], [], now=at(minutes=40))
        assert found.dollars_per_hour == pytest.approx(hourly)
        assert found.so_far == pytest.approx(hourly * 40 / 60)
        assert found.worst_case == pytest.approx(hourly * 3630 / 3600)
        assert found.notes == ()
    # Two of the three have been taken away.
    assert costs([vm(ends=ends), workers[0]], [], now=at(minutes=40)).dollars_per_hour == pytest.approx(0.61)


@pytest.mark.parametrize("status", ["TERMINATED", "STOPPED"])
def test_a_vm_that_is_off_costs_its_disk_until_it_is_deleted(status: str) -> None:
    off = vm(status=status, lastStopTimestamp=text(at(minutes=30)), ends=at(hours=2))
    found = costs([off], [], now=at(hours=10))
    assert found.dollars_per_hour == pytest.approx(DISK)
    # 0.46 x 0.5 h + 0.01 x 9.5 h
    assert found.so_far == pytest.approx(0.23 + 0.095)
    assert (found.worst_case, found.ends) == (None, None)
    assert found.notes == ("digits-0 is off, and its disk still costs",)


def test_a_disk_that_no_vm_holds_costs_until_it_is_deleted() -> None:
    found = costs([vm("digits-1", ends=at(hours=2))], [disk(), disk(zone="us-west1-a")], now=at(hours=1))
    assert found.dollars_per_hour == pytest.approx(NODE + DISK + DISK_WEST)
    assert found.so_far == pytest.approx(0.46 + 0.01 + 0.012)
    assert found.worst_case is None
    assert "disk digits-0 belongs to no existing VM" in found.notes


def test_until_a_vm_runs_its_disk_alone_costs_and_its_time_limit_does_not_count() -> None:
    starting = vm(status="STAGING")
    del starting["lastStartTimestamp"]
    found = costs([starting], [], now=at(minutes=5))
    assert (found.ends, found.since) == (at(minutes=5, seconds=7200), None)
    assert found.dollars_per_hour == pytest.approx(NODE)
    assert found.so_far == pytest.approx(DISK * 300 / 3600)
    # From now on all of it, for 7200 s and half a minute.
    assert found.worst_case == pytest.approx((DISK * 300 + NODE * 7230) / 3600)
    running = vm(lastStartTimestamp=text(at(minutes=20)))
    found = costs([starting, running], [], now=at(minutes=50))
    assert found.since == at(minutes=20)
    assert found.so_far == pytest.approx(2 * DISK * 50 / 60 + (NODE - DISK) * 30 / 60)


def test_a_vm_that_stops_costs_its_disk_until_it_is_gone() -> None:
    found = costs([vm(status="STOPPING", ends=at(hours=1))], [], now=at(hours=1))
    assert found.dollars_per_hour == pytest.approx(DISK)
    assert found.so_far == pytest.approx(NODE)
    assert found.worst_case == pytest.approx(NODE + DISK * 30 / 3600)
    assert found.notes == ()


@pytest.mark.parametrize(
    "scheduling",
    [
        {"instanceTerminationAction": "DELETE"},
        {"instanceTerminationAction": "STOP", "maxRunDuration": {"seconds": "7200"}},
    ],
)
def test_what_nothing_ends_has_no_worst_case(scheduling: dict[str, Any]) -> None:
    found = costs([vm(scheduling=scheduling), vm("digits-1")], [], now=at(hours=1))
    assert (found.worst_case, found.ends) == (None, None)
    assert found.notes == ("digits-0 has no time limit that deletes it",)
    assert found.so_far == pytest.approx(0.92)


@pytest.mark.parametrize("stamp", ["", "yesterday", None])
def test_a_resource_without_a_legible_time_can_still_be_seen(stamp: object) -> None:
    found = costs([vm(creationTimestamp=stamp, lastStartTimestamp=stamp)], [], now=at(hours=1))
    assert found.dollars_per_hour == pytest.approx(NODE)
    assert found.since is None
