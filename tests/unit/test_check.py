"""What `hvdcloud check` makes of what nodes say: pairs, figures, verdicts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from hvdcloud.check.findings import AllReduce, GpuHealth, MachineFinding, all_reduce, machine_finding, xids
from hvdcloud.check.pairs import MOST_AT_ONCE, MOST_ROUNDS, rounds
from hvdcloud.check.verdict import Health, NodeVerdict, compare, judge
from hvdcloud.node.check import gpus
from hvdcloud.providers.base import Promise
from hvdcloud.providers.gce.capacity.promises import promise
from hvdcloud.providers.gce.money.catalog import NodeKind

MB, GB = 10**6, 10**9
NODES = ("d-0", "d-1", "d-2")


def machine(node: str, **changes: Any) -> MachineFinding:
    """A node like the others."""
    usual = MachineFinding(
        node=node,
        cores=8,
        memory=30 * GB,
        cpu=400 * MB,
        cpu_share=0.95,
        disk_write=200 * MB,
        bucket_up=90 * MB,
        bucket_down=120 * MB,
    )
    return dataclasses.replace(usual, **changes)


def pair(one: str, other: str, *, seconds: float = 0.1, latency: float = 0.002, error: str = "") -> AllReduce:
    """An all-reduce of 100 MB."""
    if error:
        return AllReduce(nodes=(one, other), error=error)
    return AllReduce(nodes=(one, other), ranks=2, size=100 * MB, seconds=seconds, latency=latency)


def all_pairs(**changes: Any) -> list[AllReduce]:
    """Of all nodes, with what is different in the pairs of one of them: `d_2={"seconds": 3.0}`."""
    found = []
    for one, other in itertools.combinations(NODES, 2):
        different = changes.get(one.replace("-", "_")) or changes.get(other.replace("-", "_")) or {}
        found.append(pair(one, other, **different))
    return found


def verdicts(
    machines: Sequence[MachineFinding] | None = None,
    pairs: Sequence[AllReduce] | None = None,
    promised: Promise | None = None,
) -> dict[str, NodeVerdict]:
    """By node."""
    machines = machines if machines is not None else [machine(node) for node in NODES]
    pairs = pairs if pairs is not None else all_pairs()
    found = judge(machines, pairs, promises={each.node: promised for each in machines})
    return {each.node: each for each in found}


def healths(found: dict[str, NodeVerdict]) -> list[str]:
    return [each.health.value for each in found.values()]


@pytest.mark.parametrize("count", range(2, 70))
def test_no_node_is_in_two_pairs_of_a_round_and_each_is_measured_with_others(count: int) -> None:
    nodes = [f"d-{index}" for index in range(count)]
    planned = rounds(nodes)
    pairs = [frozenset(each) for turn in planned for each in turn]
    assert all(len(set(itertools.chain(*turn))) == 2 * len(turn) <= 2 * MOST_AT_ONCE for turn in planned)
    assert len(set(pairs)) == len(pairs)
    partners = {node: sum(node in each for each in pairs) for node in nodes}
    wanted = min(count - 1, MOST_ROUNDS)
    assert all(wanted - 1 <= partners[node] <= wanted for node in nodes)
    assert min(partners.values()) >= 1


def test_up_to_four_nodes_are_measured_in_every_pair() -> None:
    for count in (2, 3, 4):
        nodes = [f"d-{index}" for index in range(count)]
        assert {frozenset(each) for turn in rounds(nodes) for each in turn} == {
            frozenset(each) for each in itertools.combinations(nodes, 2)
        }
    assert rounds(["d-0"]) == []


def test_nodes_that_are_alike_are_ok() -> None:
    found = verdicts()
    assert healths(found) == ["ok", "ok", "ok"]
    assert all(each.reasons == [] for each in found.values())
    assert found["d-0"].bandwidth == pytest.approx(1000 * MB)
    assert found["d-0"].latency == pytest.approx(0.002)


def test_a_node_with_a_bad_network_is_named_and_its_partners_are_not() -> None:
    found = verdicts(pairs=all_pairs(d_2={"seconds": 3.0}))
    assert healths(found) == ["ok", "ok", "bad"]
    assert found["d-2"].reasons == ["all-reduce: 33.3 MB/s, where the others have 1.0 GB/s"]


def test_a_slow_processor_is_slow_and_a_far_slower_one_is_bad() -> None:
    for cpu, health in ((390 * MB, "ok"), (250 * MB, "slow"), (100 * MB, "bad")):
        found = verdicts([machine("d-0"), machine("d-1", cpu=cpu), machine("d-2")])
        assert healths(found) == ["ok", health, "ok"]
    assert found["d-1"].reasons == ["processor: 100.0 MB/s, where the others have 400.0 MB/s"]


def test_of_two_nodes_the_slower_one_is_named_but_not_for_their_only_pair() -> None:
    found = verdicts([machine("d-0"), machine("d-1", disk_write=10 * MB)], [pair("d-0", "d-1", seconds=50.0)])
    assert healths(found) == ["ok", "bad"]
    assert found["d-1"].reasons == ["disk: 10.0 MB/s, where the others have 200.0 MB/s"]


def test_a_node_alone_has_no_other_to_be_compared_with() -> None:
    assert healths(verdicts([machine("d-0", cpu=1.0)], [])) == ["ok"]


def test_a_node_that_was_slow_once_is_judged_by_the_better_of_two_measurements() -> None:
    one, other = machine("d-0", cpu=10 * MB, bucket_up=None), machine("d-0", disk_write=1 * MB, cores=4)
    assert one.best_of(other) == machine("d-0", cores=4)
    slow, fast = pair("d-0", "d-1", seconds=9.0, latency=0.001), pair("d-0", "d-1", seconds=0.1, latency=0.5)
    assert slow.best_of(fast) == fast.best_of(slow) == pair("d-0", "d-1", seconds=0.1, latency=0.001)
    failed = pair("d-0", "d-1", error="it took longer")
    assert failed.best_of(fast) == fast.best_of(failed) == fast
    assert failed.best_of(failed).error


def test_nodes_of_another_kind_are_not_compared() -> None:
    machines = [machine("d-0", cpu=50 * MB), machine("d-1"), machine("d-2")]
    head, workers = Promise(machine="e2-small"), Promise(machine="n1-standard-8")
    found = judge(machines, [], promises={"d-0": head, "d-1": workers, "d-2": workers})
    assert [each.health for each in found] == [Health.OK] * 3


def test_a_node_that_reaches_no_other_is_bad_and_says_why() -> None:
    found = verdicts(pairs=all_pairs(d_1={"error": "it took longer than 140 s"}))
    assert healths(found) == ["ok", "bad", "ok"]
    assert found["d-1"].reasons == ["no all-reduce with d-0, d-2: it took longer than 140 s"]


@pytest.mark.parametrize(
    ("changes", "health", "reason"),
    [
        ({"error": "node d-1 does not answer"}, "bad", "node d-1 does not answer"),
        ({"cpu_limit": 2.0}, "bad", "cores: 2, where the others have 8"),
        ({"cpu_share": 0.3}, "slow", "time of its cores: 30 %, where the others have 95 %"),
        ({"cpu_stolen": 0.25}, "slow", "25 % of its processor's time is stolen"),
        ({"disk_error": "less than 1.3 GB are free"}, "bad", "disk: less than 1.3 GB are free"),
        ({"bucket_error": "403"}, "bad", "bucket: 403"),
        ({"gpus_expected": 2, "gpus": [GpuHealth(index=0)]}, "bad", "1 of 2 GPUs answer"),
        ({"gpus_expected": 1, "gpu_trouble": "nvidia-smi failed: x"}, "bad", "nvidia-smi failed: x"),
        ({"gpus": [GpuHealth(index=0, ecc_errors=3)]}, "bad", "GPU 0: 3 uncorrected ECC errors"),
        (
            {"gpus": [GpuHealth(index=1, retirement_pending=True)]},
            "bad",
            "GPU 1: pages of its memory wait for a restart to be retired",
        ),
        (
            {"gpus": [GpuHealth(index=0, throttle_reasons=0x40 | 0x1, temperature=94)]},
            "slow",
            "GPU 0: its clocks are held down: thermal slowdown at 94 °C",
        ),
        (
            {"gpus": [GpuHealth(index=0, link_width=4, link_width_most=16)]},
            "slow",
            "GPU 0: PCI Express with 4 of 16 lanes",
        ),
        ({"xids": [79]}, "bad", "the NVIDIA driver has logged XID 79"),
        ({"xids": [63]}, "slow", "the NVIDIA driver has logged XID 63"),
    ],
)
def test_what_is_broken_in_a_node_is_said(changes: dict[str, Any], health: str, reason: str) -> None:
    found = verdicts([machine("d-0"), machine("d-1", **changes), machine("d-2")])
    assert healths(found) == ["ok", health, "ok"]
    assert found["d-1"].reasons == [reason]


@pytest.mark.parametrize(
    "changes",
    [
        {"xids": [13, 31, 43]},  # Faults of a program.
        {"gpus": [GpuHealth(index=0, throttle_reasons=0x1 | 0x4)]},  # Idle, and held to its power limit.
        {"gpus": [GpuHealth(index=0, link_width=16, link_width_most=16, ecc_errors=0)]},
    ],
)
def test_what_is_no_fault_of_a_node_is_not_said(changes: dict[str, Any]) -> None:
    assert healths(verdicts([machine("d-0"), machine("d-1", **changes), machine("d-2")])) == ["ok"] * 3


def test_what_is_below_a_promise_is_slow_never_bad() -> None:
    promised = Promise(machine="n1-standard-8", network=16e9, disk_write=500e6)
    slow = [machine(node, disk_write=100 * MB) for node in NODES]
    found = verdicts(slow, [pair(*each, seconds=1.0) for each in itertools.combinations(NODES, 2)], promised)
    assert healths(found) == ["slow"] * 3
    assert found["d-0"].reasons == [
        "all-reduce: 100.0 MB/s; n1-standard-8 has 2.0 GB/s at most",
        "disk: 100.0 MB/s; one of its size writes 500.0 MB/s",
    ]
    assert healths(verdicts(None, None, promised)) == ["slow"] * 3
    assert healths(verdicts([machine(node, disk_write=300 * MB) for node in NODES], None, promised)) == ["ok"] * 3


def test_a_figure_that_is_missing_says_nothing() -> None:
    assert compare({"d-0": None, "d-1": 1.0}, slow=0.4, bad=0.1) == {}
    assert compare({"d-0": 0.0, "d-1": 1.0, "d-2": 1.0}, slow=0.4, bad=0.1) == {"d-0": (Health.BAD, 0.0, 1.0)}


@pytest.mark.parametrize(
    ("machine_type", "network", "disk"),
    [
        ("n1-standard-1", 2e9, 168.0),
        ("n1-standard-8", 16e9, 168.0),
        ("n1-standard-96", 32e9, 168.0),
        ("custom-6-20480", 12e9, 168.0),
        ("g2-standard-48", 50e9, 168.0),
        ("a2-highgpu-1g", 24e9, 168.0),
    ],
)
def test_machine_types_promise_what_google_says(machine_type: str, network: float | None, disk: float) -> None:
    found = promise(NodeKind(machine_type=machine_type), disk_gb=100)
    assert found.network == network
    assert found.disk_write == pytest.approx(disk * (1 << 20))


def test_large_disks_of_small_machines_are_limited_by_the_machine() -> None:
    small = promise(NodeKind(machine_type="n1-standard-4"), disk_gb=2000).disk_write
    large = promise(NodeKind(machine_type="n1-standard-8"), disk_gb=2000).disk_write
    assert (small, large) == (240 * (1 << 20), 700 * (1 << 20))


def test_nvidia_smi_is_read_also_where_a_gpu_does_not_tell() -> None:
    output = (
        "0, Tesla T4, 2, No, 0x0000000000000040, 8, 16, 71\n"
        "1, Tesla K80, [N/A], [Not Supported], [N/A], 16, 16, [Unknown Error]\n"
        "Unable to determine the device handle for GPU 0000:00:05.0\n"
    )
    assert gpus.parse(output) == [
        {
            "index": 0,
            "name": "Tesla T4",
            "ecc_errors": 2,
            "retirement_pending": False,
            "throttle_reasons": 0x40,
            "link_width": 8,
            "link_width_most": 16,
            "temperature": 71,
        },
        {"index": 1, "name": "Tesla K80", "link_width": 16, "link_width_most": 16},
    ]


def test_a_real_h100_that_idles_is_healthy() -> None:
    """What nvidia-smi of driver 580.159.04 printed; clocks that an idle GPU lowers itself (0x1) are no fault."""
    found = gpus.parse("0, NVIDIA H100 80GB HBM3, 0, [N/A], 0x0000000000000001, 16, 16, 35\n")
    finding = machine_finding("d-0", {"gpus": found}, gpus=1)
    assert [(gpu.name, gpu.ecc_errors, gpu.throttle_reasons, gpu.temperature) for gpu in finding.gpus] == [
        ("NVIDIA H100 80GB HBM3", 0, 1, 35)
    ]
    assert judge([finding], [], promises={})[0].health is Health.OK


def test_the_drivers_errors_are_found_in_a_boot_log() -> None:
    log = (
        "[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
        "[12.3] NVRM: Xid (PCI:0000:00:04): 79, pid=1234, GPU has fallen off the bus.\n"
        "[12.4] NVRM: Xid (PCI:0000:00:04): 79, pid=1234, again\n"
        "[13.0] NVRM: Xid (PCI:0000:00:05): 31, pid=77, name=python\n"
        "NVRM: Xid (" + "x" * 200 + "): 48\n"
    )
    assert xids(log) == [31, 79]


def test_what_a_hostile_node_answers_is_missing_not_an_error() -> None:
    hostile = {
        "cores": -1,
        "memory": "much",
        "cpu": {"speed": 1e300, "share": "all", "limit": -1, "stolen": []},
        "disk": ["x"],
        "bucket": {"up": -5, "down": True, "error": 7},
        "gpus": [{"index": "x"}, {"index": 0, "name": ["y"], "ecc_errors": "many", "retirement_pending": "yes"}, 3],
    }
    assert machine_finding("d-0", hostile, gpus=0) == MachineFinding(node="d-0", gpus=[GpuHealth(index=0)], xids=[])
    assert all_reduce(["d-0", "d-1"], {"seconds": "1"}).error == "it said nothing"
    assert all_reduce(["d-0", "d-1"], {"error": "x" * 9999}).error == "x" * 400


def test_an_unknown_machine_type_promises_nothing() -> None:
    assert promise(NodeKind(machine_type="z9-standard-4"), disk_gb=100) == Promise(machine="z9-standard-4")
