"""The price tables: the shipped one, prices.yaml, and the one that `hvdcloud offers --refresh` writes.

The newer of the two counts. The second is kept in the state folder; one that cannot be used is left aside with a
notice: prices are estimates, and nothing that makes or deletes machines may fail for them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hvdcloud.cluster.files import state_root, write_private
from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.money.tables import read_table

FORMAT = 1
HOURS_PER_MONTH = 730
# No cluster's name has a dot in it, so no cluster's folder is called that.
REFRESHED = "prices.json"
_REFRESH = "hvdcloud offers --refresh writes a new one"

N1_VCPU, N1_GB = "n1-vcpu", "n1-gb"
DISK, BUCKET, ADDRESS = "disk-gb-month", "bucket-gb-month", "address"
LOCAL_SSD = "local-ssd-gb-month"
EVERYWHERE = (DISK, BUCKET, ADDRESS)
"""What every cluster needs in every region; a region whose own figure is not known takes the main region's."""
OF_NO_MACHINE = frozenset((*EVERYWHERE, LOCAL_SSD))
"""What is also sold where there are no machines."""

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Pair = tuple[Dollars | None, Dollars | None]
"""[on demand, spot]; null: not known, or not sold."""
Rates = dict[str, Pair]
"""Those above, machine types with their GPUs, and GPUs that are attached → dollars."""


class Table(BaseModel):
    """What things cost in some regions, as of a day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    as_of: date
    region: str
    """The main one: its figures are used for regions that are not in the table."""
    regions: dict[str, Rates]

    @model_validator(mode="after")
    def _the_main_region_is_there(self) -> Table:
        main = self.regions.get(self.region, {})
        missing = [key for key in (N1_VCPU, N1_GB, *EVERYWHERE) if None in main.get(key, (None, None))]
        if missing:
            raise ValueError(f"{self.region} has no {missing[0]}")
        return self

    @property
    def main(self) -> Rates:
        """The main region's figures."""
        return self.regions[self.region]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The table that counts."""

    table: Table
    notices: tuple[str, ...] = ()
    """Why a refreshed one does not count."""


def refreshed_path() -> Path:
    """Where the refreshed table is, or would be."""
    return state_root() / REFRESHED


def chosen() -> Chosen:
    """The refreshed table where there is one that can be used and is not older, else the shipped one."""
    path = refreshed_path()
    try:
        stat = path.stat()
    except FileNotFoundError:
        return Chosen(table=shipped())
    except OSError as error:
        return _left_aside(f"{path} cannot be read: {error.strerror}; {_REFRESH}")
    return _choose(path, stat.st_mtime_ns, stat.st_size)


def save(table: Table) -> None:
    """Make this the refreshed table, in one move.

    Raises CapacityError: the disk is full. UsageError: the file may not be written.
    """
    path = refreshed_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = "make it writable, or name another folder with HVDCLOUD_STATE_DIR"
        raise UsageError(f"{path.parent} cannot be made: {error.strerror or error}", hint=hint) from error
    # JSON, which is read many times faster than YAML.
    write_private(path, json.dumps(table.model_dump(mode="json"), indent=1) + "\n")


@cache
def shipped() -> Table:
    """The table that comes with hvdcloud."""
    return Table.model_validate(read_table("prices.yaml"))


# The file's time and size: what was read is kept until it changes.
@lru_cache(maxsize=4)
def _choose(path: Path, _time: int, _size: int) -> Chosen:
    try:
        table = Table.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return _left_aside(
            f"{path} is not a price table ({': '.join(filter(None, (where, first['msg'])))}); {_REFRESH}"
        )
    except OSError as error:
        return _left_aside(f"{path} cannot be read: {error.strerror}; {_REFRESH}")
    except (ValueError, RecursionError):
        return _left_aside(f"{path} is damaged; {_REFRESH}")
    if table.as_of < shipped().as_of:
        return _left_aside(f"{path} is of {table.as_of}, before the shipped prices; {_REFRESH}")
    return Chosen(table=table)


def _left_aside(notice: str) -> Chosen:
    return Chosen(table=shipped(), notices=(notice,))
