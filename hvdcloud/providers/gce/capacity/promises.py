"""What a machine type and its disk promise: the most that Google says they can do."""

from __future__ import annotations

import re

from hvdcloud.errors import UsageError
from hvdcloud.providers.base import Promise
from hvdcloud.providers.gce.money.catalog import NodeKind, machine

_GBIT = 1e9
_MIB = 1 << 20
# https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth (as of 2026-11), in Gbit/s.
_NETWORK = {
    **{f"g2-standard-{vcpus}": rate for vcpus, rate in ((4, 10), (8, 16), (12, 16), (16, 32), (24, 32), (32, 32))},
    "g2-standard-48": 50,
    "g2-standard-96": 100,
    **{f"a2-{kind}-{gpus}g": rate for kind in ("highgpu", "ultragpu") for gpus, rate in ((1, 24), (2, 32), (4, 50))},
    **{f"a2-{kind}g": 100 for kind in ("highgpu-8", "ultragpu-8", "megagpu-16")},
    **{f"a3-highgpu-{gpus}g": rate for gpus, rate in ((1, 25), (2, 50), (4, 100), (8, 1000))},
}
# https://cloud.google.com/compute/docs/network-bandwidth: N1 has 2 Gbit/s a vCPU, 32 at most; only many GPUs raise it.
_N1 = re.compile(r"n1-(?:standard|highmem|highcpu)-(\d+)")
_N1_PER_VCPU, _N1_MOST = 2, 32
# https://cloud.google.com/compute/docs/disks/performance, zonal balanced disks: MiB/s, per GiB, and of one machine.
_DISK_BASE, _DISK_PER_GIB, _DISK_MOST, _DISK_MOST_SMALL = 140, 0.28, 1200, 240
_SMALL_VCPUS = 8
"""Below this many vCPUs, a machine writes less to its disks."""


def promise(kind: NodeKind, *, disk_gb: int) -> Promise:
    """Of nodes of a kind; a machine type that is in no table here promises nothing but its disk."""
    try:
        vcpus = machine(kind.machine_type).vcpus
    except UsageError:
        return Promise(machine=kind.machine_type)
    most = _DISK_MOST if vcpus >= _SMALL_VCPUS else _DISK_MOST_SMALL
    return Promise(
        machine=kind.machine_type,
        network=_network(kind.machine_type),
        disk_write=min(_DISK_BASE + _DISK_PER_GIB * disk_gb, most) * _MIB,
    )


def _network(machine_type: str) -> float | None:
    if found := _N1.fullmatch(machine_type):
        return min(_N1_PER_VCPU * int(found[1]), _N1_MOST) * _GBIT
    rate = _NETWORK.get(machine_type)
    return rate * _GBIT if rate is not None else None
