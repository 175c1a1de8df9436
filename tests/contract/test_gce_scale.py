"""What hundreds of nodes cost in calls of the API; tests/bench/gce measures the seconds."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from tests.support.gce_bench import DELETE, A, Bench
from tests.support.harness import DEADLINE

MANY = 256
GET = "compute.instances.get"
READ = "compute.instances.getGuestAttributes"


@dataclass
class Calls:
    """Of one cluster's life, by what they were made for."""

    before: Counter[str]
    create: Counter[str]
    wait: Counter[str]
    down: Counter[str]


def life(bench: Bench, *, nodes: int) -> Calls:
    """The provider's part of `up` and `down`."""
    # What answers may be busy with all of them.
    bench.retry_seconds = DEADLINE
    spec, provider = bench.spec(nodes=nodes), bench.another(zones=[A], gpu=None)

    def calls() -> Counter[str]:
        entries = bench.emulator.log.entries()
        bench.emulator.log.clear()
        return Counter(entry.method for entry in entries)

    calls()
    assert provider.cluster(spec.name) is None
    plan = provider.plan(spec)
    before = calls()
    created = provider.create(plan)
    create = calls()
    ready = provider.wait_ready(created, deadline=time.monotonic() + 120)
    assert len({node.host_key for node in ready}) == nodes
    wait = calls()
    assert provider.cluster(spec.name) is not None
    assert provider.destroy(spec.name) == []
    assert bench.left == []
    return Calls(before, create, wait, calls())


def test_up_and_down_of_256_nodes_cost_a_delete_for_each_and_little_else(bench: Bench) -> None:
    one, many = (life(bench, nodes=nodes) for nodes in (1, MANY))

    assert many.before == one.before
    # How often an operation is waited for depends on how long it takes.
    for calls in (one.create, many.create):
        assert calls["compute.zoneOperations.wait"] + calls["compute.globalOperations.wait"] <= 6
        del calls["compute.zoneOperations.wait"], calls["compute.globalOperations.wait"]
    assert many.create == one.create
    assert many.create["compute.instances.bulkInsert"] == 1
    assert set(many.wait) <= {READ, "compute.instances.aggregatedList"}
    assert MANY <= many.wait[READ] <= 3 * MANY
    # What a list does not show any more is asked for by name before it counts as gone.
    each = (DELETE, GET)
    assert [[calls.down[method] for method in each] for calls in (one, many)] == [[1, 1], [MANY, MANY]]
    rest = [sum(count for method, count in calls.down.items() if method not in each) for calls in (one, many)]
    assert rest[1] <= rest[0] + 20
