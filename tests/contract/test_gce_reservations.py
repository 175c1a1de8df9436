"""Nodes of a reservation, against the emulator (records): how they are asked for, and what is refused before."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from hvdcloud.config.model import LimitsConfig
from hvdcloud.errors import UsageError
from tests.support.gce_bench import A, B, Bench

T4 = {"nvidia-tesla-t4": 1}


def later(hours: float) -> str:
    return (datetime.now(timezone.utc) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("made", "model"),
    [
        ({}, "STANDARD"),
        ({"ends": later(20)}, "STANDARD"),
        ({"dense": True}, "RESERVATION_BOUND"),
        ({"ends": later(20), "calendar": True}, "RESERVATION_BOUND"),
    ],
    ids=["plain", "that ends", "dense", "calendar mode"],
)
def test_nodes_are_made_of_it_in_its_zone_and_take_no_quota(bench: Bench, made: dict[str, Any], model: str) -> None:
    bench.emulator.reserve("mine", zone=B, count=3, gpus=T4, **made)
    bench.emulator.set_quota("NVIDIA_T4_GPUS", 0, region="us-central1")
    provider = bench.another(reservation="mine", provisioning="reservation")
    spec = bench.spec()
    plan = provider.plan(spec)
    assert plan.zones == (B,)
    nodes = bench.create(spec, provider)
    assert {node.id.partition("/")[0] for node in nodes} == {B}
    for vm in bench.emulator.state.instances():
        assert vm["scheduling"]["provisioningModel"] == model
        assert vm["scheduling"]["instanceTerminationAction"] == "DELETE"
        assert "maxRunDuration" in vm["scheduling"]
        affinity = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["mine"]}
        assert vm["reservationAffinity"] == {**affinity, "key": "compute.googleapis.com/reservation-name"}
    (grown,) = provider.grow(spec, [2])
    assert grown.id.startswith(B)
    with pytest.raises(UsageError, match=f"does not fit: in {B} it has 0 of 3 machines free"):
        provider.plan_growth(spec, [3])
    assert bench.another().destroy(spec.name) == []


def test_a_shared_reservation_is_named_with_its_project(bench: Bench) -> None:
    bench.emulator.reserve("ours", zone=A, count=2, gpus=T4)
    path = "projects/test-project/reservations/ours"
    provider = bench.another(reservation=path, provisioning="reservation")
    spec = bench.spec()
    bench.create(spec, provider)
    assert {vm["reservationAffinity"]["values"][0] for vm in bench.emulator.state.instances()} == {path}
    assert provider.destroy(spec.name) == []


@pytest.mark.parametrize(
    ("made", "said", "hint"),
    [
        ({"zone": "us-east1-b"}, "it is in us-east1-b, and gce.zones names", "write gce.zones: [us-east1-b]"),
        ({"machine_type": "g2-standard-8"}, "its machines are g2-standard-8", "write gce.machine_type: g2-standard-8"),
        ({"gpus": {}}, "its machines have no GPU", "write gce.gpu"),
        ({"gpus": {"nvidia-tesla-v100": 2}}, "its machines have 2 nvidia-tesla-v100", "write gce.gpu"),
        ({"count": 1}, f"in {A} it has 1 of 1 machine free", "take nodes: 1"),
        ({"ends": 2.5}, "before limits.max_run_duration", "m, or less"),
    ],
    ids=["zone", "machine type", "no GPU", "other GPUs", "too few", "ends too early"],
)
def test_one_that_does_not_fit_is_refused_before_anything_is_made_and_what_fits_is_named(
    bench: Bench, made: dict[str, Any], said: str, hint: str
) -> None:
    if "ends" in made:
        # In hours from now: not from when the tests were collected.
        made = {"ends": later(made["ends"])}
    bench.emulator.reserve("mine", **{"zone": A, "count": 2, "gpus": T4, **made})
    limits = LimitsConfig.model_validate({"max_run_duration": "3h"})
    provider = bench.another(reservation="mine", provisioning="reservation", limits=limits)
    with pytest.raises(UsageError) as refused:
        provider.plan(bench.spec())
    assert said in refused.value.message
    assert hint in refused.value.hint
    if "ends" in made:
        minutes = re.search(r"max_run_duration: (\d+)m", refused.value.hint)
        assert minutes is not None
        assert 100 < int(minutes[1]) <= 150
    assert not any(entry.http == "POST" for entry in bench.emulator.log.entries())


def test_one_that_is_not_there_is_said_to_be_missing(bench: Bench) -> None:
    provider = bench.another(reservation="mine", provisioning="reservation")
    with pytest.raises(UsageError, match="project test-project has no reservation mine"):
        provider.plan(bench.spec())
