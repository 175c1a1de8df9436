"""What nodes, disks and addresses cost, estimated from a dated table; a month is 730 hours.

The table is the one that `hvdcloud offers --refresh` has written into the state folder, else prices.yaml. A written one
that cannot be read does not count: prices are estimates, and nothing that makes or deletes machines may fail for them.
Sustained-use discounts, free tiers and network traffic are left out.
"""

from __future__ import annotations

from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from hvdcloud.cluster.files import make_folder, state_root, write_private
from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.money.catalog import NodeKind

HOURS_PER_MONTH = 730


class PriceUnknownError(UsageError):
    """The price table has no price of something that can be had all the same."""


N1_VCPU, N1_GB = "n1-vcpu", "n1-gb"
DISK, ADDRESS, LOCAL_SSD = "disk-gb-month", "address", "local-ssd-gb-month"
OF_NO_MACHINE = (DISK, ADDRESS, LOCAL_SSD)
"""What is also sold where there are no machines."""

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Pair = tuple[Dollars | None, Dollars | None]
"""[on demand, spot]; null: not known, or not sold."""
Rates = dict[str, Pair]
"""Those above, machine types with their GPUs, and GPUs that are attached → dollars."""


class Table(BaseModel):
    """What things cost in some regions, as of a day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: date
    region: str
    """The main one: its figures are used where a region has none."""
    regions: dict[str, Rates]

    @property
    def main(self) -> Rates:
        """The main region's figures."""
        return self.regions.get(self.region, {})


@cache
def shipped() -> Table:
    """The table that comes with hvdcloud."""
    return Table.model_validate(yaml.safe_load(Path(__file__).with_name("prices.yaml").read_text(encoding="utf-8")))


def table() -> Table:
    """The refreshed table where there is one that can be read, else the shipped one."""
    return _read(_refreshed())


@cache
def _read(path: Path) -> Table:
    try:
        return Table.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return shipped()


def save(table: Table) -> None:
    """Make this the refreshed table, in one move; raises as `write_private`."""
    make_folder(state_root())
    write_private(_refreshed(), table.model_dump_json(indent=1) + "\n")
    _read.cache_clear()


def _refreshed() -> Path:
    # No cluster's name has a dot in it, so no cluster's folder is called that.
    return state_root() / "prices.json"


def node_dollars_per_hour(kind: NodeKind, *, disk_gb: float, external_ip: bool, region: str | None = None) -> float:
    """The estimate for one node: machine, GPUs, boot disk and external address, in US dollars an hour.

    Flex-start costs no more than on demand, which is taken for it; so does a reservation that was paid for before.

    Args:
        region: None: the main one. Regions differ by 10 to 50 %.

    Raises:
        PriceUnknownError: the price table does not know it.
        UsageError: the machine type or the GPU is not in the catalogue.
    """
    machine = catalog.machine(kind.machine_type)
    parts: dict[str, float] = {machine.name: 1}
    if machine.takes_gpus:
        parts = {N1_VCPU: machine.vcpus, N1_GB: machine.memory_gb}
        if kind.gpu_type and kind.gpu_count:
            parts[kind.gpu_type] = kind.gpu_count
    parts[DISK] = disk_gb / HOURS_PER_MONTH
    if external_ip:
        parts[ADDRESS] = 1
    return sum(amount * _rate(key, spot=kind.provisioning == "spot", region=region) for key, amount in parts.items())


def disk_dollars_per_hour(*, disk_gb: float, region: str | None = None) -> float:
    """A balanced persistent disk, whether attached or not."""
    return disk_gb * _rate(DISK, spot=False, region=region) / HOURS_PER_MONTH


def knows(region: str) -> bool:
    """False: the figures for it are those of the main region, an estimate."""
    return region in table().regions


def _rate(key: str, *, spot: bool, region: str | None) -> float:
    """The region's figure, else the main region's, else the shipped one."""
    found = table()
    for rates in (found.regions.get(region or found.region, {}), found.main, shipped().main):
        rate = rates.get(key, (None, None))[int(spot)]
        if rate is not None:
            return rate
    raise PriceUnknownError(f"the price table does not know {key}", hint="hvdcloud offers lists what it knows")
