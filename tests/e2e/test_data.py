"""Data sets on two containers: fetched once per node with a lent token, mounted, waited for, and shared out."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.storage.open import open_bucket
from tests.standins.google_account import service_account
from tests.standins.storage import StorageServer, running_server
from tests.standins.token_service import TokenService, token_service
from tests.support.chaos import disturb
from tests.support.elastic_run import events, members
from tests.support.harness import Project, Screen, labelled, project_in, until

pytestmark = pytest.mark.engine

LOGIN = "ya29.the-users-own-access-token"
FILES = {f"part-{number}": f"sample {number}\n".encode() * 2000 for number in range(8)}
SUM = hashlib.sha256(b"".join(FILES.values())).hexdigest()
# Also tries to write, as another user than root.
READS = (
    'cd "$HVDCLOUD_DATA"; echo "rank $HOROVOD_RANK of user $(id -u) has $(cat lake/* | sha256sum | cut -c1-64)"; '
    'echo "and $(cat val/*)"; for set in *; do touch $set/new 2>/dev/null && echo WROTE; done; '
    'rm -f lake/part-0 val/one 2>/dev/null && echo REMOVED; echo "sets:" *'
)
# A sample is a file, and every node has as many; which ones a world has seen is printed at the end of each epoch.
SHARES = """
import json, os, pathlib, time

import horovod.torch as hvd
import torch

hvd.init()
mine = sorted(path.name for path in pathlib.Path(os.environ["HVDCLOUD_DATA"], "shares").iterdir())


@hvd.elastic.run
def train(state):
    while True:
        seen = []
        for name in mine:
            hvd.allreduce(torch.ones(1), name="step")
            seen.append(name)
            time.sleep(0.1)
        everyone = sorted(name for each in hvd.allgather_object(seen) for name in each)
        if hvd.rank() == 0:
            print(f"epoch in a world of {hvd.size()}: {json.dumps(everyone)}", flush=True)
        state.epoch += 1
        state.commit()


train(hvd.elastic.TorchState(epoch=0))
"""


@dataclass
class Lake:
    """The bucket `lake`, which only lent tokens read, and only while it is open."""

    server: StorageServer
    tokens: TokenService
    waiting: int = 0
    _open: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allows(self, token: str, action: str, bucket: str, name: str) -> int:
        with self._lock:
            self.waiting += 1
        self._open.wait(300)
        with self._lock:
            self.waiting -= 1
        return self.tokens.allows(token, action, bucket, name)

    def put(self, prefix: str, files: dict[str, bytes]) -> None:
        self.server.boundary = None
        for name, content in files.items():
            open_bucket("gs://lake", endpoint=self.server.url).write(f"{prefix}/{name}", content)
        self.server.boundary = self.allows
        self.server.requests.clear()
        self._open.set()

    def claim(self, name: str, size: int) -> None:
        """Say of an object that it has this many bytes."""
        live = self.server.store.buckets["lake"].live
        live[name] = replace(live[name], size=size)

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def fetched(self) -> Counter[str]:
        """How often each object's content was served whole."""
        found: Counter[str] = Counter()
        for _, path, status, _ in list(self.server.requests):
            if "alt=media" in path and status in (200, 206):
                found[path.partition("?")[0].rpartition("%2F")[2]] += 1
        return found


@dataclass
class Shared:
    """Two nodes that are up, and where their data come from."""

    project: Project
    lake: Lake
    val: Path
    engine: Any

    def data(self, **more: Any) -> dict[str, Any]:
        return {"lake": "gs://lake/sets/train", "val": self.val.as_uri(), **more}

    def configure(self, **data: Any) -> None:
        # A node is lost that says nothing for most of the timeout.
        run = {"command": f"sh -c '{READS}'", "user": "1000", "env": {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}}
        checkpoints = {"keep_every": 0.2}
        self.project.configure(nodes=2, run=run, checkpoints=checkpoints, data=data or self.data())


@contextmanager
def a_lake(root: Path, project: Project) -> Iterator[Lake]:
    """A storage server and a token service, which the project's commands use."""
    with (
        service_account(LOGIN) as account,
        token_service(subject=LOGIN) as tokens,
        running_server(root / "storage", host="0.0.0.0", buckets=("lake",)) as server,
    ):
        account.write(root / "key.json")
        project.environ = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(root / "key.json"),
            "HVDCLOUD_STS_ENDPOINT": tokens.url,
            "STORAGE_EMULATOR_HOST": server.url,
        }
        yield Lake(server=server, tokens=tokens)


@contextmanager
def cluster_of(project: Project, engine: Any) -> Iterator[None]:
    """The project's cluster, of which nothing is left."""
    try:
        project.hvdcloud("up")
        yield
    finally:
        project.hvdcloud("down", "--force")
        assert labelled(engine, project.name) == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("data")
    (root / "val").mkdir()
    (root / "val" / "one").write_text("what is mounted")
    project = project_in(root, "t-data")
    with a_lake(root, project) as lake:
        lake.put("sets/train", FILES)
        shared = Shared(project=project, lake=lake, val=root / "val", engine=engine)
        shared.configure()
        with cluster_of(project, engine):
            yield shared
            lake.open()


@pytest.fixture
def cluster(shared: Shared) -> Shared:
    """As it was, whatever an earlier test has left."""
    shared.lake.open()
    shared.lake.server.faults.clear()
    shared.lake.server.requests.clear()
    shared.configure()
    return shared


def fail_every_second(server: StorageServer) -> None:
    server.fault(path="/b/lake/o", every=2, times=10_000, action={"status": 503})


def test_data_are_on_every_node_before_a_rank_starts_and_fetched_once(cluster: Shared) -> None:
    fail_every_second(cluster.lake.server)
    ran = cluster.project.hvdcloud("run")
    for rank in (0, 1):
        assert f"rank {rank} of user 1000 has {SUM}" in ran.out
    assert ran.out.count("and what is mounted") == 2
    assert ran.out.count("sets: lake val") == 2
    assert "WROTE" not in ran.out
    assert "REMOVED" not in ran.out
    assert cluster.lake.fetched() == dict.fromkeys(FILES, 2)
    assert (cluster.val / "one").read_text() == "what is mounted"

    # The second run fetches nothing, and a set that is new only that; what a token may read, it says.
    cluster.lake.server.faults.clear()
    cluster.lake.server.requests.clear()
    cluster.lake.put("more", {"extra": b"extra"})
    cluster.configure(**cluster.data(more={"source": "gs://lake/more", "per_node": "all"}))
    again = cluster.project.hvdcloud("run", "--json").json["result"]
    assert (again["state"], again["data"]["gpu_seconds"]) == ("succeeded", 0.0)
    assert [(each["node"], each["phase"], each["files"]) for each in again["data"]["nodes"]] == [
        ("t-data-0", "ready", 9), ("t-data-1", "ready", 9),
    ]  # fmt: skip
    assert cluster.lake.fetched() == {"extra": 2}
    newest = list(cluster.lake.tokens.given.values())[-1]
    assert {(rule.bucket, rule.prefix) for rule in newest.rules} == {("lake", "sets/train/"), ("lake", "more/")}
    assert all(rule.may == {"get", "list"} for rule in newest.rules)


def test_what_no_node_can_have_ends_the_run_before_a_rank_starts(cluster: Shared, tmp_path: Path) -> None:
    cluster.configure(**cluster.data(more="gs://lake/nothing"))
    refused = cluster.project.hvdcloud("run", expect=2)
    assert re.search(r"run \S+ did not start: node t-data-[01]: data set more: ", refused.err)
    assert "gs://lake/nothing" in refused.err
    assert "rank 0" not in refused.out

    # More than the disk has, by the bucket's word: nothing is fetched.
    cluster.lake.put("huge", {"one": b"x"})
    cluster.lake.claim("huge/one", 1 << 60)
    cluster.configure(**cluster.data(more="gs://lake/huge"))
    refused = cluster.project.hvdcloud("run", expect=4)
    assert re.search(r"data set more needs 1152921504\.61 GB more, and the disk has [\d.]+ GB left", refused.err)
    assert cluster.lake.fetched() == {}

    # A folder is mounted when a node is made.
    cluster.configure(**cluster.data(late=tmp_path.as_uri()))
    refused = cluster.project.hvdcloud("run", expect=2)
    assert f"data.late none → {tmp_path.as_uri()}" in refused.err
    assert "hvdcloud down && hvdcloud up applies it" in refused.err
    gone = tmp_path / "gone"
    cluster.configure(**cluster.data(late=gone.as_uri()))
    asked = cluster.project.hvdcloud("up", "--name", "t-data-other", expect=2)
    assert f"the folder of data set late, {gone}, does not exist" in asked.err
    assert labelled(cluster.engine, "t-data-other") == []


def test_a_run_that_waits_is_left_shown_and_ended(cluster: Shared) -> None:
    project, lake = cluster.project, cluster.lake
    lake.put("sets/train", {"part-9": b"one more"})
    lake.close()
    with project.started("run") as process:
        screen = Screen(process)
        until(lambda: lake.waiting >= 2, seconds=60, what="nodes that fetch")
        screen.wait_for("t-data-1: data: ")
        process.send_signal(signal.SIGINT)
        screen.end(within=30)
        assert screen.exit_code == 130
        assert "continues" in screen.text

    def says_so() -> str:
        said = project.hvdcloud("status").out
        return said if "waits for the data of 2 nodes" in said else ""

    assert re.search(r"t-data-0 +the bucket is listed", until(says_so, seconds=30, what="a status that says so"))
    project.hvdcloud("stop")

    # A node that is frozen while it fetches ends the run; what it had verified stays.
    with project.started("run") as process:
        screen = Screen(process)
        screen.wait_for("t-data-1: data: ")
        until(lambda: lake.waiting >= 2, seconds=60, what="nodes that fetch")
        happened = disturb(cluster.engine, "pause", "t-data-1")
        try:
            screen.end(within=90)
        finally:
            happened.undo()
        assert screen.exit_code == 7, screen.text
        assert "node t-data-1 was lost" in screen.text
    lake.open()
    lake.server.requests.clear()
    ran = project.hvdcloud("run")
    assert ran.out.count("and what is mounted") == 2
    assert set(lake.fetched()) == {"part-9"}


def test_every_sample_of_a_world_is_seen_once_an_epoch_with_shares_and_a_loss(
    tmp_path: Path, engine: Any, image: str
) -> None:
    project = project_in(tmp_path, "t-shares")
    with a_lake(tmp_path, project) as lake:
        lake.put("shares", FILES)
        project.write("train.py", SHARES)
        project.configure(
            nodes=2,
            run={"elastic": {"min": 1, "max": 2}, "env": {"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "30"}},
            checkpoints={"keep_every": 0.2},
            data={"shares": {"source": "gs://lake/shares", "per_node": "shard"}},
        )
        with cluster_of(project, engine), project.started("run") as process:
            screen = Screen(process)
            screen.wait_for("epoch in a world of 2: ", times=2)
            assert lake.fetched() == dict.fromkeys(FILES, 1)
            disturb(engine, "remove", "t-shares-1")
            screen.wait_for("epoch in a world of 1: ")
            whole = screen.text.count("epoch in a world of 2: ")
            # This client replaces the node, which joins only when it has its share.
            screen.wait_for("epoch in a world of 2: ", times=whole + 2, seconds=180)
            text = screen.text
            found = {event["event"]: event for event in events(engine, project) if event.get("node") == "t-shares-1"}
            alias = members(engine, project)["t-shares-1"]["alias"]
        assert "lost a node" in found
        assert re.fullmatch(r"t-shares-1-g\d+", alias)
        assert alias in found["node joins"]["detail"]
        epochs = re.findall(r"epoch in a world of (\d): (\[.*\])", text)
        seen = {world: {tuple(json.loads(names)) for at, names in epochs if at == world} for world in ("1", "2")}
        assert seen == {"1": {tuple(sorted(FILES)[0::2])}, "2": {tuple(sorted(FILES))}}
        assert lake.fetched() == {name: 1 + number % 2 for number, name in enumerate(sorted(FILES))}
