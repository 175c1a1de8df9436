"""A record in the bucket for each cluster that costs money, and what the clusters of a month have cost by them.

`.hvdcloud/clusters/CREATED-ID-NAME.json` is written before the nodes are made, and written again when they are gone.
Only people's machines write it: nodes may neither replace nor delete it (docs/security.md), but may add one that nobody
asked for. Nothing in it is trusted further than that it makes a sum larger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hvdcloud.errors import CheckpointError
from hvdcloud.json_values import parse_object
from hvdcloud.runs.reports import instant, number, plain_name, whole

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster, ClusterSpec
    from hvdcloud.cluster.spending import Segment
    from hvdcloud.storage.base import Bucket

FOLDER = ".hvdcloud/clusters/"
VERSION = 1
LARGEST = 1 << 16
"""Bytes of a record that are read; one of ours has less than a thousand."""
DELETE_SECONDS = 120.0
"""How long nodes that end themselves may take for it."""
_NAME = re.compile(r"([0-9]{8}-[0-9]{6})-([0-9a-f]{6})-([a-z0-9-]{1,63})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a cluster costs; moments are seconds since the epoch."""

    cluster: str
    id: str
    owner: str = ""
    created: float
    ends: float | None = None
    """When its provider deletes the last of it; None: never."""
    nodes: int
    dollars_per_hour: float
    worst_case_dollars: float
    ended: float | None = None
    """When it was found gone; None: nobody has looked."""
    dollars: float | None = None
    """What it has cost; None: it may exist."""

    @property
    def name(self) -> str:
        """The name of its object."""
        moment = datetime.fromtimestamp(int(self.created), timezone.utc)
        return f"{FOLDER}{moment:%Y%m%d-%H%M%S}-{self.id}-{self.cluster}.json"

    def dollars_until(self, end: float) -> float:
        """What it has cost if it was gone by then: never more than at worst."""
        spent = self.dollars_per_hour * max(0.0, end - self.created) / 3600
        return min(self.worst_case_dollars, spent)

    def to_json(self, spent: Sequence[Segment] = ()) -> bytes:
        """The record's bytes; `spent`: where the dollars went."""
        return json.dumps({"version": VERSION, **asdict(self), "spent": [asdict(each) for each in spent]}).encode()


class BadBillError(CheckpointError):
    """A record that cannot be read."""


def parse_bill(data: bytes, *, name: str, source: str) -> Bill:
    """The record that an object holds.

    Args:
        name: of the object, which the record has to fit.
        source: its address, for the error message.

    Raises:
        BadBillError: it is none, or has a number that no cluster has.
    """
    value = parse_object(data) or {}
    per_hour, worst, dollars = (number(value.get(key)) for key in ("dollars_per_hour", "worst_case_dollars", "dollars"))
    created, nodes = instant(value.get("created")), whole(value.get("nodes"))
    bill = None
    if created is not None and nodes is not None and per_hour is not None and worst is not None:
        bill = Bill(
            cluster=plain_name(value.get("cluster")),
            id=plain_name(value.get("id")),
            owner=plain_name(value.get("owner")),
            created=created,
            ends=instant(value.get("ends")),
            nodes=nodes,
            dollars_per_hour=per_hour,
            worst_case_dollars=worst,
            ended=instant(value.get("ended")),
            dollars=dollars,
        )
        if min(per_hour, worst, dollars or 0.0) < 0:
            bill = None
    if bill is None or bill.name != name or (bill.ended is None) != (bill.dollars is None):
        raise BadBillError(
            f"{source} is not the record of a cluster",
            hint=f"look at who wrote it, and delete it: gcloud storage rm {source}",
        )
    return bill


def bill_name(cluster: Cluster | ClusterSpec) -> str:
    """The name of the object that is written for a cluster before it is made."""
    created = cluster.created.timestamp()
    return Bill(
        cluster=cluster.name, id=cluster.id, created=created, nodes=0, dollars_per_hour=0.0, worst_case_dollars=0.0
    ).name


def read_bill(bucket: Bucket, name: str) -> Bill | None:
    """A cluster's record; None: there is none.

    Raises:
        BadBillError: it cannot be used.
        HvdcloudError: the bucket cannot be read.
    """
    from hvdcloud.storage.base import ObjectMissingError

    try:
        return parse_bill(bucket.read(name, most=LARGEST), name=name, source=f"{bucket.url}/{name}")
    except ObjectMissingError:
        return None


def bill_names(bucket: Bucket, *, since: datetime, cluster: str | None = None) -> list[str]:
    """The records of clusters that were made in that month or later, oldest first; `cluster`: of this name only."""
    first = f"{since:%Y%m}"
    matches = [_NAME.fullmatch(info.name.removeprefix(FOLDER)) for info in bucket.list(f"{FOLDER}2")]
    return [f"{FOLDER}{each[0]}" for each in matches if each and each[1] >= first and cluster in (None, each[3])]


# --- the sum of a month -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The newest run of a cluster, as its state in the bucket tells; moments are seconds since the epoch."""

    cluster: str
    id: str
    """The cluster's."""
    began: float
    """When the cluster began to cost."""
    ended: float
    dollars: float
    """What the cluster had cost by then."""
    nodes_ended: bool
    """Its nodes ended themselves with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """What the clusters of a calendar month (UTC) have cost, or may still cost; an estimate."""

    month: str
    """`2026-11`."""
    dollars: float
    clusters: int
    of_living: float = 0.0
    """The part of `dollars` of clusters that exist, if they live as long as they may."""


def month_bounds(now: datetime) -> tuple[datetime, datetime]:
    """The first moment of a month and that of the next, in UTC."""
    first = now.astimezone(timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return first, following


def month_sum(
    bills: Sequence[Bill],
    *,
    now: datetime,
    living: Mapping[str, Cluster] | None = None,
    runs: Sequence[EarlierRun] = (),
) -> Month:
    """Add up a month.

    A cluster counts by the share of its time that is in the month. One that exists counts what it may cost at worst.
    One that nobody saw end counts until its last run ended its nodes, else until now or until its provider deleted it.

    Args:
        living: those that exist, by their ids; None: it was not asked, and what has no end counts until now.
        runs: the newest of each cluster; those of clusters without a record count by what their state says.
    """
    first, following = (each.timestamp() for each in month_bounds(now))
    moment, exist = now.timestamp(), living or {}
    newest = {run.id: run for run in runs}
    parts: dict[str, float] = {}
    for bill in bills:
        if bill.id not in exist:
            end, dollars = end_of(bill, newest.get(bill.id), now=moment)
            parts[bill.id] = dollars * _share(bill.created, end, first, following)
    known = {bill.id for bill in bills}
    for run in runs:
        if run.id not in known and run.id not in exist:
            parts[run.id] = run.dollars * _share(run.began, run.ended, first, following)
    alive = {each.id: _at_worst(each, first=first, following=following, now=moment) for each in exist.values()}
    counted = {key: dollars for key, dollars in {**parts, **alive}.items() if dollars > 0}
    return Month(
        month=f"{month_bounds(now)[0]:%Y-%m}",
        dollars=sum(counted.values()),
        clusters=len(counted),
        of_living=sum(alive.values()),
    )


def end_of(bill: Bill, last: EarlierRun | None, *, now: float) -> tuple[float, float]:
    """When a cluster that is not known to exist was gone, and what it had cost then at most.

    Args:
        last: its newest run.
    """
    if bill.ended is not None and bill.dollars is not None:
        return bill.ended, bill.dollars
    end = now if bill.ends is None else min(now, bill.ends)
    if last is not None and last.nodes_ended:
        end = min(end, last.ended + DELETE_SECONDS)
    return end, bill.dollars_until(end)


def _share(since: float, until: float, first: float, following: float) -> float:
    """How much of a time is within the month."""
    if until <= since:
        return 1.0 if first <= since < following else 0.0
    return max(0.0, min(until, following) - max(since, first)) / (until - since)


def _at_worst(cluster: Cluster, *, first: float, following: float, now: float) -> float:
    """What a cluster that exists may have cost this month, until its end or that of the month."""
    began = (cluster.costs_since or cluster.created).timestamp()
    before = cluster.dollars_so_far * _share(began, now, 0.0, first)
    until_then = cluster.dollars_so_far + cluster.dollars_per_hour * (following - now) / 3600
    worst = until_then if cluster.worst_case_dollars is None else cluster.worst_case_dollars
    return worst - before
