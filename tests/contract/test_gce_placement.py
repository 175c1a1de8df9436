"""Nodes close to each other: the placement policy is made before them and goes after them, whatever dies and when."""

from __future__ import annotations

import pytest

from hvdcloud.errors import HvdcloudError
from hvdcloud.providers.gce.provider import GceProvider
from tests.support.gce_bench import BULK_INSERT, A, Bench

INSERT, DELETE = "compute.resourcePolicies.insert", "compute.resourcePolicies.delete"


def close_together(bench: Bench) -> GceProvider:
    return bench.another(machine_type="g2-standard-4", gpu=None, zones=[A, "us-east1-b"])


def policies(bench: Bench) -> list[str]:
    return [link for link in bench.left if "/resourcePolicies/" in link]


def test_two_nodes_are_of_a_policy_and_down_from_another_laptop_deletes_it_after_them(bench: Bench) -> None:
    provider, spec = close_together(bench), bench.spec()
    name = f"hvdcloud-{spec.name}-{spec.id}"
    plan = provider.plan(spec)
    (asked,) = (each for each in plan.requests if each.object == f"placement {name} in us-central1")
    assert asked.body["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
    bench.create(spec, provider)
    (link,) = policies(bench)
    assert link.endswith(f"/regions/us-central1/resourcePolicies/{name}")
    assert [vm["resourcePolicies"] for vm in bench.emulator.state.instances()] == [[link], [link]]
    (node,) = provider.grow(spec, [2])
    assert bench.emulator.state.vm(A, node.name).resource["resourcePolicies"] == [link]
    (found,) = bench.another().list().clusters
    assert f"placement {name}" in found.other_objects
    assert bench.another().destroy(spec.name) == []


def test_machines_that_take_no_policy_a_single_node_and_none_have_none(bench: Bench) -> None:
    single = bench.spec(nodes=1)
    assert close_together(bench).plan(single).placement is None
    assert bench.another().plan(bench.spec()).placement is None
    apart = bench.another(machine_type="g2-standard-4", gpu=None, placement="none")
    assert apart.plan(bench.spec()).placement is None
    bench.create(single, close_together(bench))
    # It began with one node.
    close_together(bench).grow(single, [1])
    assert policies(bench) == []
    assert bench.another().destroy(single.name) == []


def test_a_full_zone_leaves_no_policy_in_its_region(bench: Bench) -> None:
    bench.fail({"stockout": {}}, method=BULK_INSERT, zone=A)
    spec = bench.spec()
    bench.create(spec, close_together(bench))
    (link,) = policies(bench)
    assert "/regions/us-east1/" in link
    assert bench.another().destroy(spec.name) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", [INSERT, BULK_INSERT])
def test_a_client_that_is_gone_at_a_request_leaves_what_down_finds(bench: Bench, method: str, when: str) -> None:
    bench.retry_seconds = 0.0
    bench.fail({"reset": when}, method=method, times=None)
    bench.fail({"status": 403, "reason": "forbidden"}, method="compute.*.delete", times=2)
    spec = bench.spec()
    with pytest.raises(HvdcloudError):
        bench.create(spec, close_together(bench))
    bench.emulator.faults.clear()
    assert bench.another().destroy(spec.name) == []


def test_a_policy_that_cannot_be_deleted_is_told_with_its_command(bench: Bench) -> None:
    spec = bench.spec()
    bench.create(spec, close_together(bench))
    bench.fail({"status": 403, "reason": "forbidden", "message": "no"}, method=DELETE, times=1)
    (left,) = bench.another().destroy(spec.name)
    assert left.object == f"placement us-central1/hvdcloud-{spec.name}-{spec.id}"
    assert (
        f"gcloud compute resource-policies delete hvdcloud-{spec.name}-{spec.id} --region us-central1"
        in left.delete_with
    )
    assert bench.another().destroy(spec.name) == []
