"""A run waits for its nodes' data: real supervisor, agents and fetchers, and a server that speaks Cloud Storage."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdcloud.errors import ExitCode, HvdcloudError
from hvdcloud.lifecycle.run_result import result_of
from hvdcloud.runs.spec import DataRequest, DataSet
from hvdcloud.runs.state import RunState
from tests.standins.storage import StorageServer, running_server
from tests.support.elastic_nodes import ElasticNodes, elastic_nodes, needs_namespaces
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, node_cluster, wait_gone

FILES = {f"part-{number}": f"sample {number}\n".encode() * 1000 for number in range(4)}
READS = """
import os, pathlib
data = pathlib.Path(os.environ["HVDCLOUD_DATA"])
print(os.environ["HOROVOD_RANK"], "has", sorted(path.name for path in (data / "train").iterdir()), flush=True)
"""


class Bucket:
    """The bucket `bucket`, whose objects are served only while it is open."""

    def __init__(self, server: StorageServer) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._waiting = 0
        self._open = threading.Event()
        self._open.set()
        server.boundary = self._allow

    def _allow(self, token: str, action: str, bucket: str, name: str) -> int:
        with self._lock:
            self._waiting += 1
        self._open.wait(60)
        with self._lock:
            self._waiting -= 1
        return 200

    def wait_for_callers(self, count: int) -> None:
        """Until as many requests wait for it to open: of each node's fetcher, its list of the objects."""
        until(lambda: self._waiting >= count, what=f"{count} fetchers")

    def put(self, files: dict[str, bytes], *, prefix: str = "train") -> None:
        from hvdcloud.storage.open import open_bucket

        for name, content in files.items():
            open_bucket("gs://bucket", endpoint=self.server.url).write(f"{prefix}/{name}", content)
        self.server.requests.clear()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def request(self, *, source: str = "gs://bucket/train", per_node: str = "all") -> DataRequest:
        wanted = DataSet(name="train", source=source, per_node=per_node)
        return DataRequest(sets=(wanted,), index=0, count=1, endpoint=self.server.url)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with running_server(tmp_path / "storage") as server:
        bucket = Bucket(server)
        bucket.put(FILES)
        yield bucket
        bucket.open()


@pytest.fixture(params=[2])
def cluster(request: pytest.FixtureRequest, bucket: Bucket) -> Iterator[NodeCluster]:
    """Of two nodes, or as many as the test says."""
    with node_cluster(nodes=request.param) as cluster:
        yield cluster


ONE_NODE = pytest.mark.parametrize("cluster", [1], indirect=True)


def has_begun(cluster: NodeCluster) -> bool:
    """Whether horovodrun was started."""
    return (cluster.base / "horovodrun.seen").exists()


def set_of(cluster: NodeCluster, name: str) -> dict[str, bytes]:
    folder = cluster.root(name) / "var/lib/hvdcloud/data/train"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def phases(cluster: NodeCluster) -> set[str]:
    return {each["phase"] for each in cluster.written().get("data", [])}


def wait_until_fetching(cluster: NodeCluster, bucket: Bucket) -> None:
    """Until each node's fetcher waits for the bucket, and its agent has said so."""
    bucket.wait_for_callers(len(cluster.names))
    until(lambda: phases(cluster) == {"fetching"}, what="agents that wait for data")


def failure_of(cluster: NodeCluster) -> HvdcloudError:
    with pytest.raises(HvdcloudError) as caught:
        result_of("digits", RunState.from_json(cluster.state())).raise_for_failure()
    return caught.value


def test_no_rank_starts_before_every_node_has_its_data(cluster: NodeCluster, bucket: Bucket) -> None:
    bucket.close()
    cluster.start_run(READS, data=bucket.request())
    wait_until_fetching(cluster, bucket)
    state = cluster.state()
    assert state["state"] == "starting"
    assert phases(cluster).isdisjoint({"ready", "failed"})
    assert [each["node"] for each in state["data"]] == ["n0", "n1"]
    assert RunState.from_json(state).waits_for_data
    assert not has_begun(cluster)
    bucket.open()

    state = cluster.wait_done()

    assert (state["result"], state["reason"]) == ("succeeded", "")
    for rank in (0, 1):
        assert f"[{rank}] {rank} has {sorted(FILES)}" in cluster.log()
    assert [(each["phase"], each["files"]) for each in state["data"]] == [("ready", 4), ("ready", 4)]
    assert state["data_seconds"] > 0
    assert set_of(cluster, "n0") == set_of(cluster, "n1") == FILES


@ONE_NODE
def test_data_that_a_node_cannot_have_end_the_run_before_any_rank(cluster: NodeCluster, bucket: Bucket) -> None:
    cluster.start_run(READS, data=bucket.request(source="gs://bucket/nothing"))

    state = cluster.wait_done()

    assert state["result"] == "failed"
    assert state["reason"].startswith("node n")
    assert "data set train: " in state["reason"]
    assert "gs://bucket/nothing" in state["reason"]
    assert not has_begun(cluster)
    error = failure_of(cluster)
    assert error.message.startswith(f"run {RUN} did not start: node n")
    assert error.code in (ExitCode.USAGE, ExitCode.CREDENTIALS, ExitCode.CAPACITY, ExitCode.NODE)
    assert error.hint


@ONE_NODE
def test_stop_ends_a_run_that_waits_for_data(cluster: NodeCluster, bucket: Bucket) -> None:
    bucket.close()
    cluster.start_run(READS, data=bucket.request())
    wait_until_fetching(cluster, bucket)
    agents = [cluster.agent(name) for name in cluster.names]

    state = cluster.verb("n0", "stop", RUN)

    assert (state["state"], state["result"]) == ("done", "stopped")
    assert not has_begun(cluster)
    wait_gone(agents)
    # The next run may begin at once, and continues where this one was.
    bucket.open()


@ONE_NODE
def test_a_fetcher_that_is_killed_is_started_again(cluster: NodeCluster, bucket: Bucket) -> None:
    bucket.close()
    cluster.start_run(READS, data=bucket.request())
    wait_until_fetching(cluster, bucket)
    fetcher = json.loads((cluster.root("n0") / "run/hvdcloud/data.fetcher").read_text())["pid"]
    os.kill(fetcher, signal.SIGKILL)
    bucket.wait_for_callers(2)
    bucket.open()
    assert cluster.wait_done()["result"] == "succeeded"
    assert set_of(cluster, "n0") == FILES


@pytest.fixture
def elastic(bucket: Bucket) -> Iterator[ElasticNodes]:
    with elastic_nodes(2) as cluster:
        yield cluster


@needs_namespaces
def test_a_node_joins_only_with_its_data(elastic: ElasticNodes, bucket: Bucket) -> None:
    elastic.begin(data=bucket.request())
    elastic.wait_for_world(elastic.names)
    bucket.close()
    late = elastic.add()
    assert elastic.admit(late) == {"ok": True}
    bucket.wait_for_callers(1)
    elastic.wait_until(lambda: elastic.member(late)["state"] == "joining", "a node that fetches")
    elastic.wait_until(lambda: len(elastic.state()["data"]) == 3, "what its agent says")
    assert elastic.member(late)["state"] == "joining"
    bucket.open()
    elastic.wait_for_world(elastic.names)
    assert set_of(elastic, late) == FILES
