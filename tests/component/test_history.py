"""`hvdcloud history`, from a bucket that others write too: a folder, and a strict server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import log_name, state_name
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.open import open_bucket
from tests.standins.storage import running_server
from tests.support.harness import Project


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
def place(request: pytest.FixtureRequest, project: Project, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(bucket=open_bucket((tmp_path / "bucket").as_uri()), laptop=project)
        return
    # Two items a page: every listing is paged.
    with running_server(tmp_path / "server", page_size=2) as server:
        project.environ["STORAGE_EMULATOR_HOST"] = server.url
        yield Place(bucket=open_bucket("gs://bucket/team", endpoint=server.url, retry_seconds=5), laptop=project)


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
        "RUN CLUSTER RESULT METRIC TIME COST NODES",
        "20241101-040000-abcdef digits unknown - - - -",
        "20241101-030000-abcdef digits failed (3) loss 1.25 10 min 00 s $0.60 2",
        "20241101-020000-fedcba letters succeeded accuracy 0.992 10 min 00 s $0.00 2",
        "20241101-010000-abcdef digits succeeded accuracy 0.992 10 min 00 s $0.60 2",
    ]
    newest = place.history()["runs"][0]
    assert (newest["result"], newest["dollars"]) == (None, None)


def test_what_is_damaged_or_made_to_deceive_has_no_result(place: Place) -> None:
    good, damaged, another, huge = (run_id(number) for number in range(4))
    keep(place, good, metrics={"accuracy": 1e300, "loss": 0.5, "\x1b[2J": 1.0}, about={"dollars_per_hour": -5.0})
    place.bucket.write(state_name("digits", damaged), b'{"run": [')
    place.bucket.write(state_name("digits", another), json.dumps(state(good)).encode())
    place.bucket.write(state_name("digits", huge), b" " * (17 << 20))
    # Names that no cluster has, and what a person has put there.
    place.bucket.write("digits/notes/x", b"a person's own")
    place.bucket.write("evil\u202ename/x", b"")
    place.bucket.write(f"_x/{good}/x", b"")
    said = place.laptop.hvdcloud("history", *place.where)
    _, *rows = [re.sub(" +", " ", row).strip() for row in said.out.splitlines()]
    assert rows == [
        *(f"{run} digits unknown - - - -" for run in (huge, another, damaged)),
        f"{good} digits succeeded loss 0.5 10 min 00 s - 2",
    ]
    assert "\x1b" not in said.out + said.err
