"""`hvdcloud history` and `limits.monthly_cost`, from a bucket that others write too: a folder, and a strict server."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import log_name, state_name
from hvdcloud.cluster.bills import FOLDER, Bill, bill_name, month_bounds, read_bill
from hvdcloud.cluster.model import Cluster, ClusterSpec, Plan
from hvdcloud.config.model import CheckpointsConfig, Config, LimitsConfig
from hvdcloud.console import Console
from hvdcloud.errors import CheckpointError, UsageError
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.monthly import check_month, close_bill, close_bills_of_gone, grow_bill, open_bill
from hvdcloud.providers.base import Listing, UnseenError
from hvdcloud.storage.base import Bucket, BucketUnreachableError
from hvdcloud.storage.open import open_bucket
from tests.standins.storage import running_server
from tests.support.harness import Project

NOW = datetime.now(timezone.utc)
TODAY = max(month_bounds(NOW)[0], NOW - timedelta(hours=1))
"""In this month, on its first day too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket, and a laptop that has never seen a cluster of it."""

    bucket: Bucket
    laptop: Project

    def history(self, *args: str) -> dict[str, Any]:
        """What the command answers as JSON."""
        result: dict[str, Any] = json.loads(self.laptop.hvdcloud("history", "--json", *args, *self.where).out)["result"]
        return result

    @property
    def where(self) -> Sequence[str]:
        return ("--bucket", self.bucket.url)


@pytest.fixture(params=["folder", "strict"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "laptop").mkdir()
    laptop = Project(folder=tmp_path / "laptop", state=tmp_path / "state", name="any")
    if request.param == "folder":
        yield Place(bucket=open_bucket((tmp_path / "bucket").as_uri()), laptop=laptop)
        return
    # Two items a page: every listing is paged.
    with running_server(tmp_path / "server", page_size=2) as server:
        laptop.environ["STORAGE_EMULATOR_HOST"] = server.url
        yield Place(bucket=open_bucket("gs://bucket/team", endpoint=server.url, retry_seconds=5), laptop=laptop)


def run_id(number: int, cluster_id: str = "abcdef") -> str:
    return f"202411{number // 24 + 1:02}-{number % 24:02}0000-{cluster_id}"


def state(run: str, **changes: Any) -> dict[str, Any]:
    """Of a run of two nodes that took ten minutes at $3.60/h."""
    began = datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc).timestamp()
    values = {
        "run": run, "cluster": "digits", "state": "done", "result": "succeeded", "exit_code": 0, "np": 2,
        "nodes": ["digits-0", "digits-1"], "started": began, "launched": began + 10, "training_since": began + 20,
        "training_until": began + 580, "ended": began + 600, "metrics": {"accuracy": 0.9917, "loss": 0.03},
        "about": {"provider": "gce", "dollars_per_hour": 3.6, "command": "python train.py"},
    }  # fmt: skip
    return {**values, **changes}


def keep(place: Place, run: str, cluster: str = "digits", **changes: Any) -> None:
    place.bucket.write(state_name(cluster, run), json.dumps(state(run, cluster=cluster, **changes)).encode())


def test_past_runs_are_listed_newest_first_with_what_they_came_to(place: Place) -> None:
    keep(place, run_id(1))
    keep(place, run_id(3), result="failed", exit_code=3, metrics={"loss": 1.25})
    keep(place, run_id(2, "fedcba"), cluster="letters", about={"provider": "local", "dollars_per_hour": 0.0})
    # Its head is active, or lost: there is something of it, but no end.
    place.bucket.write(log_name("digits", run_id(4)), b"no end")
    table = place.laptop.hvdcloud("history", *place.where).out.splitlines()
    assert [re.sub(" +", " ", line).strip() for line in table] == [
        "RUN CLUSTER RESULT METRIC TIME COST NODES WHEN",
        "20241101-040000-abcdef digits unknown - - - - 2024-11-01 04:00Z",
        "20241101-030000-abcdef digits failed (3) loss 1.25 10 min 00 s $0.60 2 2024-11-01 03:00Z",
        "20241101-020000-fedcba letters succeeded accuracy 0.992 10 min 00 s $0.00 2 2024-11-01 02:00Z",
        "20241101-010000-abcdef digits succeeded accuracy 0.992 10 min 00 s $0.60 2 2024-11-01 01:00Z",
    ]
    newest, *_, oldest = place.history()["runs"]
    assert (newest["result"], newest["dollars"]) == (None, None)
    # Two nodes for 20, 560 and 20 of 600 seconds at $1.80/h each.
    assert [(each["category"], each["seconds"]) for each in oldest["spent"]] == [
        ("start", 40.0),
        ("training", 1120.0),
        ("upload", 40.0),
    ]
    assert [round(each["dollars"], 4) for each in oldest["spent"]] == [0.02, 0.56, 0.02]
    assert sum(each["dollars"] for each in oldest["spent"]) == pytest.approx(oldest["dollars"])


def test_one_cluster_and_a_limit(place: Place) -> None:
    for number in range(5):
        keep(place, run_id(number))
    keep(place, run_id(6, "fedcba"), cluster="letters")
    found = place.history("--name", "digits", "--limit", "2")
    assert [run["run"] for run in found["runs"]] == [run_id(4), run_id(3)]
    assert found["more"] == 3
    said = place.laptop.hvdcloud("history", "--limit", "2", *place.where).out
    assert said.splitlines()[-1] == "4 older: hvdcloud history --limit 6"


def test_an_empty_bucket_knows_of_no_run(place: Place) -> None:
    said = place.laptop.hvdcloud("history", *place.where)
    assert said.out == f"{place.bucket.url} knows of no run\n"


def test_what_is_damaged_or_made_to_deceive_is_left_out_with_a_warning(place: Place) -> None:
    good, damaged, another, huge = (run_id(number) for number in range(4))
    keep(place, good, metrics={"accuracy": 1e300, "loss": 0.5, "\x1b[2J": 1.0}, about={"dollars_per_hour": -5.0})
    place.bucket.write(state_name("digits", damaged), b'{"run": [')
    place.bucket.write(state_name("digits", another), json.dumps(state(good)).encode())
    place.bucket.write(state_name("digits", huge), b" " * (17 << 20))
    place.bucket.write(state_name("digits", "99991231-235959-abcdef"), b"{}")
    place.bucket.write(state_name("digits", "20241399-000000-abcdef"), b"{}")
    place.bucket.write("digits/notes/x", b"a person's own")
    place.bucket.write(f"{FOLDER}{NOW:%Y%m}01-000000-abcdef-digits.json", b"[]")
    place.bucket.write("evil\u202ename/x", b"")
    said = place.laptop.hvdcloud("history", *place.where)
    _, row = said.out.splitlines()
    assert re.sub(" +", " ", row).startswith(f"{good} digits succeeded loss 0.5 10 min 00 s - 2 ")
    warnings = [line for line in said.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 6
    assert all(line.endswith("it is left out") for line in warnings)
    assert "\x1b" not in said.out + said.err


def test_hundreds_of_runs_are_listed_and_only_the_newest_read(place: Place) -> None:
    for number in range(150):
        keep(place, run_id(number), cluster=f"c{number % 5}")
    keep(place, run_id(160), cluster="c0")
    found = place.history("--limit", "100")
    assert [run["run"] for run in found["runs"]] == [run_id(each) for each in (160, *range(149, 50, -1))]
    assert found["more"] == 51


# --- limits.monthly_cost ----------------------------------------------------------------------------------------------


class Cloud:
    """What exists, as a provider lists it."""

    def __init__(self, *clusters: Cluster, unseen: tuple[str, ...] = ()) -> None:
        self._listing = Listing(clusters=clusters, unseen=unseen)

    def list(self) -> Listing:
        return self._listing


def experiment(place: Place, monthly: float | None, cloud: Cloud | None = None) -> Context:
    config = Config(
        name="digits",
        provider="gce",
        checkpoints=CheckpointsConfig(bucket=place.bucket.url),
        limits=LimitsConfig(monthly_cost=monthly),
    )
    context = Context(config, Console(as_json=True))
    vars(context).update(provider=cloud or Cloud())
    return context


@pytest.fixture(autouse=True)
def endpoint(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.laptop.environ.items():
        monkeypatch.setenv(name, value)


def spec(number: int = 1, name: str = "digits") -> ClusterSpec:
    return ClusterSpec(
        name=name, id=f"{number:06x}", owner="ada", nodes=2, image="i", bucket="", authorized_key="k", created=NOW
    )


def plan(number: int = 1, *, worst: float = 3.0) -> Plan:
    return Plan(spec=spec(number), requests=(), dollars_per_hour=1.5, worst_case_dollars=worst, seconds=7200.0)


def spent(place: Place, number: int, dollars: float) -> None:
    """A cluster that is gone."""
    bill = Bill(
        cluster="digits", id=f"{number:06x}", created=float(int(TODAY.timestamp())), nodes=2, dollars_per_hour=1.5,
        worst_case_dollars=dollars, ended=float(int(TODAY.timestamp())) + 1, dollars=dollars,
    )  # fmt: skip
    place.bucket.write(bill.name, bill.to_json())


def existing(number: int, *, bucket: str = "", worst: float = 4.0) -> Cluster:
    return Cluster(
        name="letters", id=f"{number:06x}", owner="bob", provider="gce", created=NOW, expected_nodes=2, nodes=(),
        image="i", bucket=bucket, dollars_per_hour=1.5, worst_case_dollars=worst, costs_since=NOW,
    )  # fmt: skip


def test_a_month_that_would_pass_the_limit_is_refused_and_one_that_just_fits_is_not(place: Place) -> None:
    spent(place, 7, 5.0)
    spent(place, 8, 2.5)
    check_month(experiment(place, 10.5), plan())
    with pytest.raises(UsageError) as refused:
        check_month(experiment(place, 10.49), plan())
    month = f"{NOW:%Y-%m}"
    assert refused.value.message == (
        "limits.monthly_cost of $10.49 does not allow cluster digits, which costs $3.00 at worst: "
        f"2 other clusters of {month} cost $7.50 (an estimate, by the records in {place.bucket.url})"
    )
    assert refused.value.hint.startswith("raise limits.monthly_cost, or lower limits.max_cost")
    check_month(experiment(place, None), plan(worst=1000.0))


def test_clusters_that_exist_count_at_worst_if_they_are_of_this_bucket(place: Place) -> None:
    own, unknown = existing(7, bucket=place.bucket.url), existing(8, worst=2.0)
    cloud = Cloud(own, unknown, existing(9, bucket="gs://another", worst=1000.0))
    check_month(experiment(place, 9.0, cloud), plan())
    with pytest.raises(UsageError, match=r"2 other clusters of .* cost \$6\.00, \$6\.00 of it at worst for those that"):
        check_month(experiment(place, 8.99, cloud), plan())


def test_a_cluster_that_never_had_a_run_counts(place: Place) -> None:
    # Its laptop was lost, and its nodes deleted themselves.
    open_bill(experiment(place, None), replace(plan(7), spec=replace(spec(7), created=TODAY)))
    with pytest.raises(UsageError, match="1 other cluster of"):
        check_month(experiment(place, 3.0), plan())


def test_a_run_of_an_earlier_version_counts_for_its_cluster(place: Place) -> None:
    run = f"{TODAY:%Y%m%d-%H%M%S}-000007"
    began = TODAY.timestamp()
    about = {"provider": "gce", "dollars_per_hour": 3.6, "dollars_before": 1.0, "costs_since": began, "seen": began}
    keep(place, run, about=about, started=began, ended=began + 600)
    check_month(experiment(place, 4.6), plan())
    with pytest.raises(UsageError, match=r"1 other cluster of .* cost \$1\.60"):
        check_month(experiment(place, 4.59), plan())


def test_what_cannot_be_added_up_is_an_error_and_no_silent_pass(place: Place) -> None:
    with pytest.raises(UnseenError):
        check_month(experiment(place, 100.0, Cloud(unseen=("zone us-central1-f",))), plan())
    spent(place, 7, 1.0)
    name = next(info.name for info in place.bucket.list(FOLDER))
    place.bucket.write(name, b"{}")
    with pytest.raises(CheckpointError, match=r"limits\.monthly_cost cannot be checked: .* is not the record of a"):
        check_month(experiment(place, 100.0), plan())


def test_a_bucket_that_cannot_be_read_is_an_error(place: Place) -> None:
    context = experiment(place, 100.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = open_bucket("gs://b", endpoint=f"http://127.0.0.1:{closed.getsockname()[1]}", retry_seconds=0.5)
    vars(context).update(bucket=lambda *_: nowhere)
    with pytest.raises(BucketUnreachableError, match=r"limits\.monthly_cost cannot be checked"):
        check_month(context, plan())
    with pytest.raises(BucketUnreachableError):
        open_bill(context, plan())


def test_a_record_is_opened_grown_and_closed_once(place: Place) -> None:
    context = experiment(place, 100.0)
    open_bill(context, plan())
    name = bill_name(spec())
    opened = read_bill(place.bucket, name)
    assert opened is not None
    assert (opened.dollars, opened.worst_case_dollars, opened.nodes) == (None, 3.0, 2)
    cluster = replace(existing(1), name="digits", bucket=place.bucket.url)
    grow_bill(context, cluster, replace(plan(worst=5.0), spec=replace(spec(), nodes=4)))
    close_bill(context, cluster, dollars=1.75, ended=NOW.timestamp() + 60)
    close_bill(context, cluster, dollars=99.0)
    closed = read_bill(place.bucket, name)
    assert closed is not None
    assert (closed.dollars, closed.worst_case_dollars, closed.nodes) == (1.75, 5.0, 4)
    check_month(experiment(place, 4.75), plan(2))
    with pytest.raises(UsageError, match=r"cost \$1\.75"):
        check_month(experiment(place, 4.74), plan(2))


def test_a_cluster_whose_nodes_ended_themselves_is_closed_when_nothing_of_its_name_is_found(place: Place) -> None:
    context = experiment(place, 100.0)
    open_bill(context, plan())
    open_bill(context, replace(plan(2), spec=spec(2, "letters")))
    close_bills_of_gone(context)
    own, other = read_bill(place.bucket, bill_name(spec())), read_bill(place.bucket, bill_name(spec(2, "letters")))
    assert own is not None
    assert other is not None
    assert own.dollars is not None
    assert 0 <= own.dollars < 3.0
    assert other.dollars is None


def test_its_last_run_tells_when_the_nodes_of_such_a_cluster_ended(place: Place) -> None:
    context = experiment(place, 100.0)
    began = datetime(2024, 11, 1, tzinfo=timezone.utc)
    open_bill(context, replace(plan(), spec=replace(spec(), created=began)))
    name = bill_name(replace(spec(), created=began))
    done = {"down_when_done": True, "checkpoints": {"complete": True}}
    keep(place, run_id(1, "000001"), **done)
    gone = replace(existing(1), name="digits", bucket=place.bucket.url, created=began)
    close_bill(context, gone, dollars=None)
    closed = read_bill(place.bucket, name)
    assert closed is not None
    # It ended ten minutes past one; two minutes later its nodes were gone: 72 min at $1.50/h
    assert (closed.ended, closed.dollars) == (began.timestamp() + 72 * 60, 1.8)
