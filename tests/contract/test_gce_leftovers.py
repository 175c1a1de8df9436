"""What a sweep could not prove to be gone is said, never swallowed."""

from __future__ import annotations

import pytest

from hvdcloud.errors import TeardownError
from hvdcloud.providers.gce.names import request_id
from hvdcloud.providers.gce.ops import delete
from tests.support.gce_bench import BULK_INSERT, DELETE, A, Bench


def test_an_operation_that_makes_something_too_long_is_left_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete, "CREATING_SECONDS", 0.0)
    bench.fail({"slow": 3600}, method=BULK_INSERT)
    spec = bench.spec()
    bench.client().bulk_insert(A, bench.provider.plan(spec).bodies(A)[0], request_id(spec.name))
    # Of no names: the VMs that are being made, which cannot be deleted yet, do not matter here.
    (making,) = delete.Sweep(bench.client(), spec.name, names=()).run()
    assert "bulkInsert" in making.object
    assert making.reason == "it still makes something after 0 s"
    assert f"--filter=labels.hvdcloud-cluster={spec.name}" in making.delete_with
    bench.emulator.reset()


def test_what_cannot_be_cleared_in_one_zone_keeps_up_from_trying_the_next(bench: Bench) -> None:
    failed = {"operation_error": {"code": "ZONE_RESOURCE_POOL_EXHAUSTED"}, "effect": True}
    bench.fail(failed, method=BULK_INSERT, zone=A)
    bench.fail({"status": 403, "message": "scripted"}, method=DELETE, times=None)
    spec = bench.spec()
    with pytest.raises(TeardownError, match=rf"2 VMs could not be made in {A}, and 2 object") as caught:
        bench.create(spec)
    assert bench.zones_asked() == [A]
    assert caught.value.hint == (
        f"gcloud compute instances delete {spec.node_name(0)} --zone {A} --project test-project --quiet"
    )
    # The last attempt to undo everything says of each what is left, and why.
    for name in map(spec.node_name, range(2)):
        assert f"VM {A}/{name}: " in caught.value.details
    assert "scripted" in caught.value.details
    bench.emulator.faults.clear()
    assert bench.provider.destroy(spec.name) == []
