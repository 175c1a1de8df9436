"""The bodies that Compute Engine is sent: whole, legal by the API's own schema, and what each choice depends on."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce import plan
from hvdcloud.providers.gce.plan import Settings
from tests import gce_samples
from tests.money import write_prices
from tests.unit.golden import assert_golden

SPEC = dataclasses.replace(gce_samples.SPEC, id="a1b2c3")
SETTINGS = dataclasses.replace(
    gce_samples.SETTINGS, service_account="nodes@p.iam.gserviceaccount.com", max_run_seconds=43200
)
TERRAFORM = {
    "subnetwork": "projects/p/regions/us-central1/subnetworks/hvdcloud",
    "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/hvdcloud",
}
VM_IMAGE = "projects/cos-cloud/global/images/cos-125-19216-1-1"
VARIANTS = [
    {},
    {"spot": True},
    {"vm_image_profile": "dlvm", "gpu_type": None, "service_account": None},
    {"machine_type": "g2-standard-8", "max_cost": 20.0},
    {"ssh_source": "iap", **TERRAFORM},
    {"machine_type": "n1-custom-6-20480", "gpu_type": "nvidia-tesla-v100"},
]


def settings(**changes: Any) -> Settings:
    return dataclasses.replace(SETTINGS, **changes)


def properties(**changes: Any) -> Any:
    body = plan.bulk_insert_body(SPEC, settings(**changes), zone="us-central1-a", vm_image=VM_IMAGE)
    return body["instanceProperties"]


@cache
def schemas() -> Any:
    import googleapiclient

    file = Path(googleapiclient.__file__).parent / "discovery_cache/documents/compute.v1.json"
    return json.loads(file.read_text(encoding="utf-8"))["schemas"]


def assert_legal(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """`value` has only what the discovery document allows: known keys, JSON types, enum values."""
    if "$ref" in schema:
        schema = schemas()[schema["$ref"]]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    assert type(value) is kinds[schema["type"]], f"{where} is {value!r}"
    assert value in schema.get("enum", [value]), f"{where} is {value!r}"
    if schema.get("format") == "int64":
        assert value == str(int(value)), f"{where} is {value!r}"
    for key, inner in value.items() if isinstance(value, dict) else ():
        known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        assert known, f"{where}.{key} is unknown"
        assert_legal(inner, known, f"{where}.{key}")
    for index, inner in enumerate(value if isinstance(value, list) else ()):
        assert_legal(inner, schema["items"], f"{where}[{index}]")


def test_the_request_is_the_golden_one() -> None:
    body = plan.bulk_insert_body(SPEC, SETTINGS, zone="us-central1-a", vm_image=VM_IMAGE)
    items = {item["key"]: item for item in body["instanceProperties"]["metadata"]["items"]}
    # The script has golden texts of its own.
    assert items["startup-script"]["value"].startswith("#!/bin/bash\n")
    items["startup-script"]["value"] = "..."
    firewalls = plan.firewall_bodies(SPEC, SETTINGS, existing=[])
    assert_golden("gce-requests.json", json.dumps({"bulkInsert": body, "firewalls": firewalls}, indent=2) + "\n")


@pytest.mark.parametrize("changes", VARIANTS)
def test_every_body_is_legal_by_the_discovery_document_and_survives_the_client_library(changes: Any) -> None:
    from google.cloud import compute_v1

    chosen = settings(**changes)
    body = plan.bulk_insert_body(SPEC, chosen, zone="us-central1-a", vm_image=VM_IMAGE)
    assert_legal(body, {"$ref": "BulkInsertInstanceResource"}, "body")
    message = compute_v1.BulkInsertInstanceResource.from_json(json.dumps(body))
    again = compute_v1.BulkInsertInstanceResource.to_dict(
        message,
        preserving_proto_field_name=False,
        use_integers_for_enums=False,
        always_print_fields_with_no_presence=False,
    )
    assert again == body
    for firewall in plan.firewall_bodies(SPEC, chosen, existing=[]):
        assert_legal(firewall, {"$ref": "Firewall"}, "firewall")
        compute_v1.Firewall.from_json(json.dumps(firewall))


def test_all_nodes_or_none_under_names_that_are_known_before() -> None:
    body = plan.bulk_insert_body(SPEC, SETTINGS, zone="us-central1-a", vm_image=VM_IMAGE)
    assert body["count"] == body["minCount"] == "2"
    assert body["perInstanceProperties"] == {"digits-0": {}, "digits-1": {}}
    assert "namePattern" not in body


def test_gpus_are_asked_for_only_where_the_machine_type_has_none_of_its_own() -> None:
    assert properties()["guestAccelerators"] == [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
    assert "guestAccelerators" not in properties(machine_type="g2-standard-8")
    assert "guestAccelerators" not in properties(gpu_type=None)
    assert "guestAccelerators" not in properties(gpu_count=0)


def test_the_driver_is_installed_only_where_there_is_a_gpu() -> None:
    def script(**changes: Any) -> str:
        return next(i["value"] for i in properties(**changes)["metadata"]["items"] if i["key"] == "startup-script")

    assert "\nGPU=yes\nDRIVER=R580\n" in script()
    assert "\nGPU=yes\n" in script(machine_type="g2-standard-8", gpu_type=None)
    assert "\nGPU=no\n" in script(gpu_type=None)


def test_compute_engine_itself_deletes_the_nodes_whoever_forgets_them() -> None:
    for spot in (False, True):
        assert properties(spot=spot)["scheduling"] == {
            "provisioningModel": "SPOT" if spot else "STANDARD",
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
            "maxRunDuration": {"seconds": "43200"},
        }


@pytest.mark.parametrize(
    ("changes", "external"),
    [
        ({}, True),
        ({"ssh_source": "iap"}, False),
        ({"ssh_source": "10.1.0.0/16"}, False),
        ({"ssh_source": "172.18.0.1/32"}, False),
        ({"ssh_source": "9.0.0.0/7"}, True),
        ({"ssh_source": "iap", "vm_image_profile": "dlvm"}, True),
    ],
)
def test_an_external_address_only_where_one_is_needed(changes: Any, external: bool) -> None:
    assert plan.external_ip_needed(settings(**changes)) is external
    [interface] = properties(**changes)["networkInterfaces"]
    assert ("accessConfigs" in interface) is external


def test_the_network_may_be_a_name_or_what_terraform_prints() -> None:
    def interface(**changes: Any) -> dict[str, Any]:
        [found] = properties(ssh_source="iap", **changes)["networkInterfaces"]
        return {key: value for key, value in found.items() if key != "nicType"}

    assert interface() == {"network": "projects/p/global/networks/default"}
    assert interface(subnetwork="nodes") == {"subnetwork": "projects/p/regions/us-central1/subnetworks/nodes"}
    assert interface(**TERRAFORM) == {
        "network": "projects/p/global/networks/hvdcloud",
        "subnetwork": "projects/p/regions/us-central1/subnetworks/hvdcloud",
    }


def rule(**changes: Any) -> dict[str, Any]:
    return {
        "name": "theirs",
        "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/default",
        "direction": "INGRESS",
        "targetTags": ["hvdcloud"],
        "allowed": [{"IPProtocol": "tcp", "ports": ["22", "2000-3000"]}],
        "sourceRanges": ["198.51.100.0/24"],
        **changes,
    }


def needed(*existing: dict[str, Any], **changes: Any) -> list[str]:
    bodies = plan.firewall_bodies(SPEC, settings(**changes), existing=existing)
    return [body["name"].rpartition("-")[2] for body in bodies]


MESH = rule(sourceRanges=[], sourceTags=["hvdcloud"], allowed=[{"IPProtocol": "all"}])


def test_no_rule_is_made_where_terraform_s_rules_do() -> None:
    assert needed() == ["ssh", "mesh"]
    assert needed(rule()) == ["mesh"]
    assert needed(MESH) == ["ssh"]
    assert needed(rule(), MESH) == []
    assert needed(rule(sourceRanges=["35.235.240.0/20"]), MESH, ssh_source="iap") == []


@pytest.mark.parametrize(
    "change",
    [
        {"disabled": True},
        {"direction": "EGRESS"},
        {"network": "projects/p/global/networks/other"},
        {"targetTags": ["web"]},
        {"targetServiceAccounts": ["x@p.iam.gserviceaccount.com"], "targetTags": []},
        {"sourceRanges": ["203.0.113.0/24"]},
        {"sourceRanges": ["2001:db8::/32"]},
        {"sourceRanges": ["198.51.100.8/32"]},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]},
        {"allowed": [{"IPProtocol": "udp"}]},
        {"allowed": [], "denied": [{"IPProtocol": "tcp"}]},
    ],
)
def test_a_rule_that_does_not_let_this_laptop_in_does_not_count(change: Any) -> None:
    assert needed(rule(**change), MESH) == ["ssh"]


def test_own_rules_say_whose_they_are_and_meet_these_nodes_only() -> None:
    ssh, mesh = plan.firewall_bodies(SPEC, SETTINGS, existing=[])
    assert ssh["name"] == "hvdcloud-digits-a1b2c3-ssh"
    assert ssh["sourceRanges"] == ["198.51.100.7/32"]
    assert mesh["sourceTags"] == mesh["targetTags"] == ssh["targetTags"] == ["hvdcloud-digits-a1b2c3"]
    assert "hvdcloud-cluster=digits hvdcloud-owner=ada hvdcloud-id=a1b2c3" in ssh["description"]


def test_names_fit_however_long_the_cluster_s_name_is() -> None:
    spec = dataclasses.replace(SPEC, name="a" * 40)
    assert all(len(body["name"]) <= 63 for body in plan.firewall_bodies(spec, SETTINGS, existing=[]))


@pytest.fixture
def known_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two nodes cost $0.92/h in us-central1 and $1.22/h in us-west1: tests/money.py."""
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path))
    write_prices(tmp_path)
    return settings(machine_type="n1-standard-2", max_run_seconds=7200)


def test_nodes_learn_when_they_count_as_idle_and_where_to_ask_for_their_end() -> None:
    def metadata(**changes: Any) -> dict[str, str]:
        items = {item["key"]: item["value"] for item in properties(**changes)["metadata"]["items"]}
        return {key: items[key] for key in ("hvdcloud-idle", "hvdcloud-compute-endpoint") if key in items}

    assert metadata() == {}
    assert metadata(idle_seconds=1800.0) == {"hvdcloud-idle": "1800"}
    elsewhere = {"idle_seconds": 2.5, "endpoint": "https://compute.example.test"}
    assert metadata(**elsewhere) == {
        "hvdcloud-idle": "2.5",
        "hvdcloud-compute-endpoint": "https://compute.example.test",
    }


def test_max_cost_shortens_the_run_by_the_prices_of_each_zone(known_prices: Settings) -> None:
    assert plan.allowed_seconds(known_prices, nodes=2, zone="us-central1-a") == 7200
    plenty = dataclasses.replace(known_prices, max_cost=3.0)
    assert plan.allowed_seconds(plenty, nodes=2, zone="us-west1-a") == 7200
    dollar = dataclasses.replace(known_prices, max_cost=1.0)
    # $1 buys 3600 / 0.92 = 3913.04 s here and 3600 / 1.22 = 2950.8 s there. Of those a VM may take 60 s to start, and
    # Compute Engine 30 s to notice that its time is up.
    limits = {"us-central1-a": 3913 - 90, "us-west1-a": 2950 - 90}
    for zone, seconds in limits.items():
        assert plan.allowed_seconds(dollar, nodes=2, zone=zone) == seconds
        body = plan.bulk_insert_body(SPEC, dollar, zone=zone, vm_image=VM_IMAGE)
        assert body["instanceProperties"]["scheduling"]["maxRunDuration"] == {"seconds": str(seconds)}


def test_max_cost_counts_nodes_disks_and_addresses(known_prices: Settings) -> None:
    dollar = dataclasses.replace(known_prices, max_cost=1.0)
    bigger = dataclasses.replace(dollar, disk_gb=1000)
    # 0.46 - 0.01 + 0.10 = 0.55 for each of three nodes: 3600 / 1.65 = 2181.8 s
    assert plan.allowed_seconds(bigger, nodes=3, zone="us-central1-a") == 2181 - 90
    inside = dataclasses.replace(dollar, ssh_source="10.0.0.0/8")
    # 2 x (0.46 - 0.01): 3600 / 0.90 = 4000 s
    assert plan.allowed_seconds(inside, nodes=2, zone="us-central1-a") == 4000 - 90


def test_the_worst_case_is_what_the_time_limit_allows_and_never_more_than_max_cost(known_prices: Settings) -> None:
    # 0.92 x (60 + 7200 + 30) / 3600 and 1.22 x the same
    assert plan.worst_case_dollars(known_prices, nodes=2, zone="us-central1-a") == pytest.approx(1.863)
    assert plan.worst_case_dollars(known_prices, nodes=2, zone="us-west1-a") == pytest.approx(2.4705)
    # The shortest time limit of all is more than the one minute that is billed at least: 0.92 x (60 + 30 + 30) / 3600
    shortest = dataclasses.replace(known_prices, max_run_seconds=30)
    assert plan.worst_case_dollars(shortest, nodes=2, zone="us-central1-a") == pytest.approx(0.030667, abs=1e-6)
    for cost in (0.05, 0.99, 1.0, 1.01, 1.5):
        limited = dataclasses.replace(known_prices, max_cost=cost)
        for zone in ("us-central1-a", "us-west1-a"):
            # What it stays below is less than a second's worth.
            assert 0 <= cost - plan.worst_case_dollars(limited, nodes=2, zone=zone) < 1.22 / 3600


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(UsageError, match="less than two minutes"):
        plan.allowed_seconds(settings(max_cost=0.01), nodes=2)
    with pytest.raises(UsageError, match="30 s to 120 days"):
        plan.allowed_seconds(settings(max_run_seconds=20), nodes=2)
    with pytest.raises(UsageError, match="not in the price table"):
        plan.allowed_seconds(settings(gpu_type="nvidia-tesla-p100", max_cost=5.0), nodes=2)


def test_zones_are_the_configured_ones_or_those_with_the_gpu() -> None:
    assert plan.zone_candidates(SETTINGS, zones=["europe-west4-b", "us-east1-c"]) == ["europe-west4-b", "us-east1-c"]
    found = plan.zone_candidates(SETTINGS, zones=[])
    assert found[:4] == ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
    assert plan.zone_candidates(settings(machine_type="g2-standard-8"), zones=[])[0] == "us-east4-a"
    pinned = plan.zone_candidates(settings(**TERRAFORM), zones=[])
    assert pinned == found[:4]


def test_a_request_id_shows_for_which_name_it_was_made() -> None:
    first, second = plan.request_id("digits"), plan.request_id("digits")
    assert first != second
    assert uuid.UUID(first).version == 4
    assert uuid.UUID(first).variant == uuid.RFC_4122
    assert plan.belongs_to(first, "digits")
    assert not plan.belongs_to(first, "digits-2")
    assert not plan.belongs_to("", "digits")
    assert plan.cluster_id_of(plan.request_id("digits", "a1b2c3")) == "a1b2c3"
    assert plan.belongs_to(plan.request_id("digits", "a1b2c3"), "digits")
