"""Nodes in another project's network (Shared VPC), and nodes without an external address."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.gce import SshConfig
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.providers.base import Problem
from hvdcloud.providers.gce.provider import GceProvider
from tests.standins.compute import Emulator, Records
from tests.support.gce_bench import BULK_INSERT, A, B, Bench, W

INSERT_RULE = "compute.firewalls.insert"
PRIVATE: dict[str, Any] = {"ssh": SshConfig(source="10.0.0.0/8")}
"""Nodes without an external address, as with `iap`, and without gcloud."""
RANGES = {"us-central1": "10.10.0.0/20", "us-west1": "10.10.16.0/20"}
NETWORK = "projects/host/global/networks/shared"
SSH = {
    "name": "ops-ssh",
    "network": NETWORK,
    "sourceRanges": ["198.51.100.0/24", "10.0.0.0/8"],
    "targetTags": ["hvdcloud"],
    "allowed": [{"IPProtocol": "tcp", "ports": ["2222"]}],
}
MESH = {
    "name": "ops-mesh",
    "network": NETWORK,
    "sourceTags": ["hvdcloud"],
    "targetTags": ["hvdcloud"],
    "allowed": [{"IPProtocol": "all"}],
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Emulator(backing=Records()) as emulator:
        emulator.add_network("shared", RANGES, project="host")
        yield (bench := Bench(emulator, tmp_path))
        assert bench.left == []


def with_rules(bench: Bench, *rules: dict[str, Any]) -> None:
    """As the host project's administrator makes them."""
    from tests.standins.compute.resources.firewalls import firewall_of

    for rule in rules:
        made = firewall_of(bench.emulator.state, rule)
        bench.emulator.state.hosts["host"].firewalls[made["name"]] = made


# --- Shared VPC -------------------------------------------------------------------------------------------------------

NAMED = {"network": NETWORK, "subnetwork": "shared"}
BY_URL = {"network": "shared", "subnetwork": "projects/host/regions/us-central1/subnetworks/shared", "zones": [A]}


@pytest.mark.parametrize("network", [NAMED, BY_URL])
def test_nodes_come_up_in_a_shared_vpc_whose_rules_are_its_administrators(
    bench: Bench, network: dict[str, Any]
) -> None:
    with_rules(bench, SSH, MESH)
    provider, spec = bench.another(**network), bench.spec()
    assert provider.preflight(spec) == []
    nodes = bench.create(spec, provider)
    assert len(provider.wait_ready(nodes, deadline=time.monotonic() + 20)) == 2
    for vm in bench.emulator.state.instances():
        path = vm["networkInterfaces"][0]["subnetwork"].partition("/v1/")[2]
        assert path == "projects/host/regions/us-central1/subnetworks/shared"
    assert bench.calls()[INSERT_RULE] == 0
    assert provider.destroy(spec.name) == []
    assert sorted(bench.emulator.state.hosts["host"].firewalls) == ["ops-mesh", "ops-ssh"]


@pytest.mark.parametrize("network", [NAMED, BY_URL])
def test_rules_that_a_shared_vpc_lacks_are_named_and_not_made(bench: Bench, network: dict[str, Any]) -> None:
    with_rules(bench, SSH)
    provider, spec = bench.another(**network), bench.spec()
    assert provider.preflight(spec) == []
    with pytest.raises(CredentialsError) as raised:
        provider.plan(spec)
    assert raised.value.message == "the Shared VPC of project host lacks firewall rules for the nodes: hvdcloud-mesh"
    assert raised.value.hint == (
        "an administrator of host can: gcloud compute firewall-rules create hvdcloud-mesh --project=host "
        "--network=shared --allow=all --source-tags=hvdcloud --target-tags=hvdcloud"
    )
    assert bench.calls()[INSERT_RULE] == bench.calls()[BULK_INSERT] == 0


def test_rules_of_a_shared_vpc_that_may_not_be_read_are_said_and_no_obstacle(bench: Bench) -> None:
    bench.emulator.access.deny(bench.emulator.keys.email, "compute.firewalls.list", resource="projects/host*")
    provider, spec = bench.another(**NAMED), bench.spec()
    (notice,) = (notice for notice in provider.plan(spec).notices if "host" in notice)
    assert notice.startswith("the firewall rules of project host may not be read, and the nodes need two of them; ")
    assert "create hvdcloud-ssh --project=host" in notice
    assert len(bench.create(spec, provider)) == 2
    provider.destroy(spec.name)


# --- no external address ----------------------------------------------------------------------------------------------


def problem_of(bench: Bench, provider: GceProvider) -> Problem:
    (problem,) = provider.preflight(bench.spec())
    return problem


def test_the_default_networks_subnetworks_lead_nowhere_without_an_external_address(bench: Bench) -> None:
    assert bench.provider.preflight(bench.spec()) == []
    provider = bench.another(**PRIVATE)
    problem = problem_of(bench, provider)
    assert problem.message == (
        "without an external address nodes cannot fetch their driver and image: subnetwork default in us-central1, "
        "us-west1 has no Private Google Access"
    )
    assert problem.hint == (
        "gcloud compute networks subnets update default --region=us-central1 --project=test-project "
        "--enable-private-ip-google-access"
    )
    with pytest.raises(UsageError, match="no Private Google Access"):
        provider.plan(bench.spec())
    assert bench.calls()[BULK_INSERT] == 0


def test_regions_with_private_google_access_are_taken(bench: Bench) -> None:
    default = bench.emulator.state.subnetworks["us-west1"]["default"]
    default["privateIpGoogleAccess"] = True
    provider, spec = bench.another(**PRIVATE), bench.spec()
    assert provider.preflight(spec) == []
    plan = provider.plan(spec)
    assert plan.zones == (W,)
    assert "left out for lack of Private Google Access: us-central1" in plan.notices
    bench.create(spec, provider)
    assert all("accessConfigs" not in vm["networkInterfaces"][0] for vm in bench.emulator.state.instances())
    provider.destroy(spec.name)


def test_a_nat_leads_out_as_well(bench: Bench) -> None:
    bench.emulator.add_nat("default", "us-central1")
    assert bench.another(**PRIVATE).plan(bench.spec()).zones == (A, B)


def test_a_nat_for_other_subnetworks_leads_nowhere(bench: Bench) -> None:
    bench.emulator.add_network("mine", {"us-central1": "10.20.0.0/20"}, google_access=False)
    bench.emulator.add_nat("default", "us-central1", subnetworks=["default"])
    provider = bench.another(network="mine", subnetwork="mine", zones=[A], **PRIVATE)
    assert "subnetwork mine in us-central1" in problem_of(bench, provider).message
    bench.emulator.add_nat("mine", "us-central1", subnetworks=["mine"])
    assert provider.preflight(bench.spec()) == []


def test_a_deep_learning_vm_has_no_external_address_either_where_there_is_a_nat(bench: Bench) -> None:
    bench.emulator.enforce("compute.vmExternalIpAccess")
    bench.emulator.add_network("mine", RANGES)
    mine = {"network": "mine", "subnetwork": "mine", "vm_image": "dlvm", "zones": [A], **PRIVATE}
    problem = problem_of(bench, bench.another(**mine))
    assert problem.message == (
        "without an external address nodes cannot install packages: subnetwork mine in us-central1 has no NAT"
    )
    assert problem.hint == "hvdcloud setup --nat makes one; or set gce.vm_image: cos"
    bench.emulator.add_nat("mine", "us-central1", subnetworks=["mine"])
    provider, spec = bench.another(**mine), bench.spec()
    assert provider.preflight(spec) == []
    bench.create(spec, provider)
    assert all("accessConfigs" not in vm["networkInterfaces"][0] for vm in bench.emulator.state.instances())
    provider.destroy(spec.name)


def test_nats_that_may_not_be_seen_may_be_there(bench: Bench) -> None:
    bench.emulator.access.deny(bench.emulator.keys.email, "compute.routers.*")
    assert bench.another(**PRIVATE).preflight(bench.spec()) == []


# --- Secure Boot ------------------------------------------------------------------------------------------------------


def test_a_policy_that_demands_secure_boot_is_named_with_the_image_that_has_it(bench: Bench) -> None:
    bench.emulator.enforce("compute.requireShieldedVm")
    with pytest.raises(CredentialsError) as raised:
        bench.create(bench.spec(), bench.another(vm_image="dlvm"))
    said = "compute.requireShieldedVm demands Secure Boot, with which gce.vm_image: dlvm has no driver"
    assert said in raised.value.message
    assert raised.value.hint.startswith("set gce.vm_image: cos, whose VMs have Secure Boot; ")
    spec = bench.spec()
    assert len(bench.create(spec)) == 2
    bench.provider.destroy(spec.name)
