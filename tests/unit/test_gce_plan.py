"""The bodies that Compute Engine is sent: whole, legal by the API's own schema, and what each choice depends on."""

from __future__ import annotations

import dataclasses
import json
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.gce import GceConfig
from hvdcloud.config.model import LimitsConfig
from hvdcloud.errors import UsageError
from hvdcloud.providers.gce import names
from hvdcloud.providers.gce.plan import budget, request
from hvdcloud.providers.gce.settings import Settings, settings_of
from hvdcloud.runs.retry import Within
from tests.golden import assert_golden
from tests.standins.compute.schema import discovery
from tests.support.gce_requests import SETTINGS, SPEC, settings
from tests.support.price_table import write_prices

TERRAFORM = {
    "subnetwork": "projects/p/regions/us-central1/subnetworks/hvdcloud",
    "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/hvdcloud",
}
VM_IMAGE = "projects/cos-cloud/global/images/cos-125-19216-1-1"
WAYS: dict[str, dict[str, Any]] = {
    "standard": {},
    "spot": {"provisioning": "spot"},
    "flex-start": {"provisioning": "flex-start"},
    "a reservation": {"provisioning": "reservation", "reservation": "mine"},
    "a shared reservation": {"provisioning": "reservation", "reservation": "projects/theirs/reservations/ours"},
    "a reservation with which its machines end": {
        "provisioning": "reservation",
        "reservation": "mine",
        "reservation_bound": True,
    },
    "two nodes close together": {"placement": True},
}
VARIANTS = [
    {},
    {"gpu_type": None, "service_account": "default"},
    {"machine_type": "g2-standard-8", "max_cost": 20.0},
    {"ssh_source": "iap", **TERRAFORM},
    {"machine_type": "n1-standard-8", "gpu_type": "nvidia-tesla-v100"},
    {"provisioning": "spot", "elastic": True},
    *({"machine_type": "a4-highgpu-8g", "gpu_type": None, **way} for name, way in WAYS.items() if name != "flex-start"),
]


def properties(**changes: Any) -> Any:
    [body] = request.bulk_insert_bodies(SPEC, settings(**changes), zone="us-central1-a", vm_image=VM_IMAGE)
    return body["instanceProperties"]


def test_the_request_is_the_golden_one() -> None:
    [body] = request.bulk_insert_bodies(SPEC, SETTINGS, zone="us-central1-a", vm_image=VM_IMAGE)
    items = {item["key"]: item for item in body["instanceProperties"]["metadata"]["items"]}
    # The script has golden texts of its own.
    assert items["startup-script"]["value"].startswith("#!/bin/bash\n")
    assert items["shutdown-script"]["value"].startswith("#!/bin/bash\n")
    items["startup-script"]["value"] = items["shutdown-script"]["value"] = "..."
    firewalls = request.firewall_bodies(SPEC, SETTINGS)
    assert_golden("gce-requests.json", json.dumps({"bulkInsert": body, "firewalls": firewalls}, indent=2) + "\n")


def test_a_flex_start_request_is_the_golden_one_and_legal() -> None:
    from google.cloud import compute_v1

    chosen = settings(machine_type="g2-standard-8", gpu_type=None, provisioning="flex-start")
    bodies = request.flex_start_bodies(SPEC, chosen, zone="us-central1-a", vm_image=VM_IMAGE)
    kinds = ("InstanceTemplate", "InstanceGroupManager", "InstanceGroupManagerResizeRequest")
    for kind, body in zip(kinds, bodies, strict=True):
        discovery().request(kind, body)
        getattr(compute_v1, kind).from_json(json.dumps(body))
    template, group, resize = bodies
    made = template.pop("properties")
    assert made["labels"] == SPEC.labels
    document = {"template": template, "group": group, "resizeRequest": resize}
    assert_golden("gce-flex-start.json", json.dumps(document, indent=2) + "\n")


def test_in_what_the_ways_to_get_machines_differ_is_the_golden_text() -> None:
    differs: dict[str, Any] = {}
    for name, changes in WAYS.items():
        chosen = settings(machine_type="a4-highgpu-8g", gpu_type=None, **changes)
        if chosen.flex_start:
            made = request.flex_start_bodies(SPEC, chosen, zone="us-central1-b", vm_image=VM_IMAGE)[0]["properties"]
        else:
            [body] = request.bulk_insert_bodies(SPEC, chosen, zone="us-central1-b", vm_image=VM_IMAGE)
            made = body["instanceProperties"]
        model = made["scheduling"].pop("provisioningModel")
        # Compute Engine itself deletes forgotten nodes, however they were had.
        assert made["scheduling"] == {
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
            "maxRunDuration": {"seconds": "43200"},
        }
        differs[name] = {"provisioningModel": model, "reservationAffinity": made["reservationAffinity"]}
        if placement := request.placement_body(SPEC, chosen):
            differs[name] |= {"resourcePolicies": made["resourcePolicies"], "placement": placement}
        else:
            assert "resourcePolicies" not in made
    lines = [f"{json.dumps(name)}: {json.dumps(way)}" for name, way in differs.items()]
    assert_golden("gce-ways.json", "{" + ",\n ".join(lines) + "}\n")


@pytest.mark.parametrize("flex_start", [False, True])
def test_a_time_that_compute_engine_does_not_take_is_refused(flex_start: bool) -> None:
    l4 = {"machine_type": "g2-standard-8", "gpu_type": None, "provisioning": "flex-start"}
    ask = request.flex_start_bodies if flex_start else request.bulk_insert_bodies
    for seconds in (599, 7 * 86400 + 1) if flex_start else (29, 0, -5, 120 * 86400 + 1):
        chosen = settings(max_run_seconds=seconds, **(l4 if flex_start else {}))
        with pytest.raises(UsageError, match="10 minutes to 7 days" if flex_start else "30 s to 120 days"):
            ask(SPEC, chosen, zone="us-central1-a", vm_image=VM_IMAGE)


@pytest.mark.parametrize("changes", VARIANTS)
def test_every_body_is_legal_by_the_discovery_document_and_survives_the_client_library(changes: Any) -> None:
    from google.cloud import compute_v1

    chosen = settings(**changes)
    for body in request.bulk_insert_bodies(SPEC, chosen, zone="us-central1-a", vm_image=VM_IMAGE):
        discovery().request("BulkInsertInstanceResource", body)
        message = compute_v1.BulkInsertInstanceResource.from_json(json.dumps(body))
        again = compute_v1.BulkInsertInstanceResource.to_dict(
            message,
            preserving_proto_field_name=False,
            use_integers_for_enums=False,
            always_print_fields_with_no_presence=False,
        )
        assert again == body
    if placement := request.placement_body(SPEC, chosen):
        discovery().request("ResourcePolicy", placement)
        compute_v1.ResourcePolicy.from_json(json.dumps(placement))
    for firewall in request.firewall_bodies(SPEC, chosen):
        discovery().request("Firewall", firewall)
        compute_v1.Firewall.from_json(json.dumps(firewall))


def test_a_job_gets_no_token_for_more_than_its_node_needs() -> None:
    storage, logs = (
        "https://www.googleapis.com/auth/devstorage.read_write",
        "https://www.googleapis.com/auth/logging.write",
    )
    everything = "https://www.googleapis.com/auth/cloud-platform"
    account = "hvdcloud@p.iam.gserviceaccount.com"

    def accounts(**changes: Any) -> Any:
        config = GceConfig.model_validate(changes)
        made = settings_of(config, LimitsConfig(), project="p", ssh_source="198.51.100.7/32")
        [body] = request.bulk_insert_bodies(SPEC, made, zone="us-central1-a", vm_image=VM_IMAGE)
        return body["instanceProperties"]["serviceAccounts"]

    assert accounts(service_account=account) == [{"email": account, "scopes": [everything]}]
    # In many projects it is an editor of everything.
    assert accounts(service_account="default") == [{"email": "default", "scopes": [storage, logs]}]


@pytest.mark.parametrize(
    ("changes", "external"),
    [
        ({}, True),
        ({"ssh_source": "iap"}, False),
        ({"ssh_source": "10.1.0.0/16"}, False),
        ({"ssh_source": "172.18.0.1/32"}, False),
        ({"ssh_source": "9.0.0.0/7"}, True),
    ],
)
def test_an_external_address_only_where_one_is_needed(changes: Any, external: bool) -> None:
    assert settings(**changes).needs_external_ip is external
    [interface] = properties(**changes)["networkInterfaces"]
    assert ("accessConfigs" in interface) is external


@pytest.fixture
def known_prices(state_root: Path) -> Settings:
    """Two nodes cost $0.92/h in us-central1 and $1.22/h in us-west1: tests/support/price_table.py."""
    write_prices(state_root)
    return settings(machine_type="n1-standard-2", max_run_seconds=7200)


@pytest.mark.parametrize(("seconds", "said"), [(None, None), (1800.0, "1800"), (2.5, "2.5")])
def test_nodes_learn_when_they_count_as_idle(seconds: float | None, said: str | None) -> None:
    items = {item["key"]: item["value"] for item in properties(idle_seconds=seconds)["metadata"]["items"]}
    assert items.get("hvdcloud-idle") == said


def test_max_cost_shortens_the_run_by_the_prices_of_each_zone(known_prices: Settings) -> None:
    assert budget.allowed_seconds(known_prices, range(2), zone="us-central1-a") == 7200
    plenty = dataclasses.replace(known_prices, max_cost=3.0)
    assert budget.allowed_seconds(plenty, range(2), zone="us-west1-a") == 7200
    dollar = dataclasses.replace(known_prices, max_cost=1.0)
    # $1 buys 3600 / 0.92 = 3913.04 s here and 3600 / 1.22 = 2950.8 s there. Of those a VM may take 60 s to start, and
    # Compute Engine 30 s to notice that its time is up.
    limits = {"us-central1-a": 3913 - 90, "us-west1-a": 2950 - 90}
    for zone, seconds in limits.items():
        assert budget.allowed_seconds(dollar, range(2), zone=zone) == seconds
        [body] = request.bulk_insert_bodies(SPEC, dollar, zone=zone, vm_image=VM_IMAGE)
        assert body["instanceProperties"]["scheduling"]["maxRunDuration"] == {"seconds": str(seconds)}


def test_an_attempt_has_what_earlier_ones_have_left_of_the_limits(known_prices: Settings) -> None:
    dollar = dataclasses.replace(known_prices, max_cost=1.0)
    now = datetime(2026, 11, 24, 10, 0, tzinfo=timezone.utc)
    assert budget.limited(dollar, None, now=now) == dollar
    # 43 cents buy 3600 x 0.43 / 0.92 = 1682.6 s; the last of all attempts has to end in 2000 s, 60 s for its start.
    money = budget.limited(dollar, Within(ends=now + timedelta(seconds=2000), max_dollars=0.43), now=now)
    assert budget.allowed_seconds(money, range(2), zone="us-central1-a") == 1682 - 90
    time = budget.limited(dollar, Within(ends=now + timedelta(seconds=1500.9), max_dollars=0.43), now=now)
    assert budget.allowed_seconds(time, range(2), zone="us-central1-a") == 1500 - 60
    # A wait for room takes from the same time.
    later = budget.limited(
        dollar, Within(ends=now + timedelta(seconds=1500.9), max_dollars=0.43), now=now + timedelta(seconds=600)
    )
    assert budget.allowed_seconds(later, range(2), zone="us-central1-a") == 900 - 60
    free = budget.limited(known_prices, Within(ends=now + timedelta(days=9), max_dollars=None), now=now)
    assert free == known_prices


def test_max_cost_counts_nodes_disks_and_addresses(known_prices: Settings) -> None:
    dollar = dataclasses.replace(known_prices, max_cost=1.0)
    bigger = dataclasses.replace(dollar, disk_gb=1000)
    # 0.46 - 0.01 + 0.10 = 0.55 for each of three nodes: 3600 / 1.65 = 2181.8 s
    assert budget.allowed_seconds(bigger, range(3), zone="us-central1-a") == 2181 - 90
    inside = dataclasses.replace(dollar, ssh_source="10.0.0.0/8")
    # 2 x (0.46 - 0.01): 3600 / 0.90 = 4000 s
    assert budget.allowed_seconds(inside, range(2), zone="us-central1-a") == 4000 - 90


def worst_case_dollars(settings: Settings, *, nodes: int, zone: str) -> float:
    worst = budget.paid_zones(settings, [zone], nodes=nodes)[0].worst_case_dollars
    assert worst is not None
    return worst


def test_the_worst_case_is_what_the_time_limit_allows_and_never_more_than_max_cost(known_prices: Settings) -> None:
    # 0.92 x (60 + 7200 + 30) / 3600 and 1.22 x the same
    assert worst_case_dollars(known_prices, nodes=2, zone="us-central1-a") == pytest.approx(1.863)
    assert worst_case_dollars(known_prices, nodes=2, zone="us-west1-a") == pytest.approx(2.4705)
    # The shortest time limit of all is more than the one minute that is billed at least: 0.92 x (60 + 30 + 30) / 3600
    shortest = dataclasses.replace(known_prices, max_run_seconds=30)
    assert worst_case_dollars(shortest, nodes=2, zone="us-central1-a") == pytest.approx(0.030667, abs=1e-6)
    for cost in (0.05, 0.99, 1.0, 1.01, 1.5):
        limited = dataclasses.replace(known_prices, max_cost=cost)
        for zone in ("us-central1-a", "us-west1-a"):
            # What it stays below is less than a second's worth.
            assert 0 <= cost - worst_case_dollars(limited, nodes=2, zone=zone) < 1.22 / 3600


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(UsageError, match="less than two minutes"):
        budget.allowed_seconds(settings(max_cost=0.01), range(2))
    with pytest.raises(UsageError, match="30 s to 120 days"):
        budget.allowed_seconds(settings(max_run_seconds=20), range(2))
    with pytest.raises(UsageError, match="the price table does not know n1-standard-8 with 1 nvidia-tesla-p100"):
        budget.allowed_seconds(settings(gpu_type="nvidia-tesla-p100", max_cost=5.0), range(2))


def test_a_request_id_shows_for_which_name_it_was_made() -> None:
    first, second = names.request_id("digits"), names.request_id("digits")
    assert first != second
    assert uuid.UUID(first).version == 4
    assert uuid.UUID(first).variant == uuid.RFC_4122
    assert names.belongs_to(first, "digits")
    assert not names.belongs_to(first, "digits-2")
    assert not names.belongs_to("", "digits")
    assert names.cluster_id_of(names.request_id("digits", "a1b2c3")) == "a1b2c3"
    assert names.belongs_to(names.request_id("digits", "a1b2c3"), "digits")


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_that_use_one_of_five_network_interfaces_are_named_before_they_are_made(nodes: int) -> None:
    chosen = settings(machine_type="a3-highgpu-8g", gpu_type=None, gpu_count=0)
    [offer] = budget.paid_zones(chosen, ["us-central1-a"], nodes=nodes)
    notices = [each for each in budget.notices(chosen, [offer], nodes=nodes) if "200 of the 1000 Gbit/s" in each]
    assert len(notices) == nodes - 1
