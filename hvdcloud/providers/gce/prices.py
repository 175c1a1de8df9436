"""What a node costs, estimated from a dated table: prices.yaml."""

from __future__ import annotations

from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hvdcloud.providers.gce import catalog

_TABLE = Path(__file__).with_name("prices.yaml")
_HOURS_PER_MONTH = 730


def node_dollars_per_hour(
    *, machine_type: str, gpu_type: str | None, gpu_count: int, spot: bool, disk_gb: int, external_ip: bool
) -> float | None:
    """The estimate for one node: machine, GPUs, boot disk and external address, at the prices of `region()`.

    Other regions differ by some 10 to 50 %; for them it is an estimate too. Sustained-use discounts and network traffic
    are left out.

    Returns:
        US dollars an hour; None if the table lacks the machine or the GPU.

    Raises:
        UsageError: the machine type is not in the catalogue.
    """
    table, column = _table(), int(spot)
    machine = catalog.machine(machine_type)
    if machine.takes_gpus:
        node = _n1(machine, column)
        if gpu_type and gpu_count:
            gpu = table["gpus"].get(gpu_type)
            if gpu is None:
                return None
            node += gpu_count * gpu[column]
    elif machine.name in table["machines"]:
        node = table["machines"][machine.name][column]
    else:
        return None
    disk = disk_gb * table["disk_gb_month"] / _HOURS_PER_MONTH
    return float(node + disk + (table["external_ip"] if external_ip else 0))


def as_of() -> date:
    """The day of the prices."""
    day: date = _table()["as_of"]
    return day


def region() -> str:
    """The region of the prices."""
    return str(_table()["region"])


def _n1(machine: catalog.Machine, column: int) -> float:
    n1 = _table()["n1"]
    price: float = machine.vcpus * n1["vcpu"][column] + machine.memory_gb * n1["gb"][column]
    return price * n1["custom_factor"] if machine.custom else price


@cache
def _table() -> Any:
    return yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
