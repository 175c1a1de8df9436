"""What `hvdcloud check` has nodes do; only ssh, horovodrun, Python with Horovod, and nvidia-smi are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.check.findings import all_reduce, machine_finding
from hvdcloud.node.check.machine_check import BUCKET_BYTES, DISK_SPARE, disk_speed
from tests.support.harness import until
from tests.support.nodes import AT_WORK, RUN, NodeCluster, node_cluster, wait_gone

OBJECT = "hvdcloud-check/digits/.hvdcloud/samples-n1"
SOON = {"cpu_seconds": 0.1}
MEASURES = """#!/bin/sh
echo "a framework says something"
[ "$HOROVOD_RANK" != 0 ] || echo 'HVDCLOUD-CHECK {{"ranks": 2, "latency": 0.002, "size": '$3', "seconds": 0.5}}'
"""
NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,name,*) echo "0, Tesla T4, 5, Yes, 0x0000000000000008, 16, 16, 70" ;;
--query-gpu=index,remapped_rows.failure) echo 'Field "remapped_rows.failure" is not a valid field to query.'; exit 2 ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def job(*names: str) -> list[str]:
    """horovodrun's command line for a rank on each of these nodes."""
    return ["horovodrun", "--gloo", "-np", str(len(names)), "-H", ",".join(f"{name}:1" for name in names)]


def collective(cluster: NodeCluster, *jobs: list[str]) -> list[dict[str, Any]]:
    payload = {"run": RUN, "jobs": jobs, "seconds": 1.0, "size": 1 << 20, "user": ""}
    results: list[dict[str, Any]] = cluster.verb("n0", "check-collective", payload=payload)["results"]
    return results


def test_a_node_measures_itself_and_leaves_an_empty_object_only(cluster: NodeCluster) -> None:
    cluster.add_tool("nvidia-smi", NVIDIA_SMI)
    payload = {"bucket": cluster.bucket_url, "bucket_endpoint": None, "object": OBJECT, "credentials": None, **SOON}
    (cluster.root("n1") / "run/hvdcloud").mkdir(parents=True)
    found = machine_finding("n1", cluster.verb("n1", "check-machine", payload=payload), gpus=1)
    assert found.error == found.disk_error == found.bucket_error == ""
    for speed in (found.cpu, found.disk_write, found.bucket_up, found.bucket_down):
        assert speed is not None
        assert speed > 1000
    assert found.cores == 4
    assert found.cpu_share is not None
    assert 0 < found.cpu_share <= 1
    (gpu,) = found.gpus
    assert (gpu.ecc_errors, gpu.retirement_pending, gpu.throttle_reasons, gpu.remapping_failed) == (5, True, 8, False)
    assert (cluster.bucket / OBJECT).read_bytes() == b""
    assert list((cluster.root("n1") / "run/hvdcloud").glob("tmp*")) == []


def test_a_bucket_that_cannot_be_used_is_an_error_of_the_bucket_alone(cluster: NodeCluster) -> None:
    (cluster.base / "file").touch()
    payload = {"bucket": (cluster.base / "file").as_uri(), "object": OBJECT, **SOON}
    (cluster.root("n1") / "run/hvdcloud").mkdir(parents=True)
    found = machine_finding("n1", cluster.verb("n1", "check-machine", payload=payload), gpus=0)
    assert found.bucket_error
    assert (found.bucket_up, found.bucket_down) == (None, None)
    assert found.cpu is not None


def test_a_disk_that_is_nearly_full_is_not_filled(tmp_path: Path) -> None:
    assert "are free" in disk_speed(tmp_path, most=1 << 60)["error"]
    assert list(tmp_path.iterdir()) == []
    assert DISK_SPARE > BUCKET_BYTES


def test_jobs_run_side_by_side_as_horovodrun_starts_them(cluster: NodeCluster) -> None:
    cluster.add_tool("python", MEASURES)
    pair, other = collective(cluster, job("n0", "n1"), job("n1"))
    assert (pair, other) == ({"ranks": 2, "latency": 0.002, "size": 1 << 20, "seconds": 0.5},) * 2
    assert all_reduce(["n0", "n1"], pair).bandwidth == pytest.approx((1 << 20) / 0.5)


def test_a_job_that_fails_says_what_it_said_last(cluster: NodeCluster) -> None:
    cluster.add_tool("python", "#!/bin/sh\necho 'RuntimeError: no route to host' >&2\nexit 1\n")
    (found,) = collective(cluster, job("n0", "n1"))
    assert "RuntimeError: no route to host" in all_reduce(["n0", "n1"], found).error


def test_what_is_left_of_a_check_is_ended_on_every_node(cluster: NodeCluster) -> None:
    cluster.add_tool("python", '#!/bin/sh\necho $$ > "{base}/pid-$HOROVOD_RANK"\nexec sleep 600\n')
    payload = {"run": RUN, "jobs": [job("n0", "n1")], "seconds": 1.0, "size": 4}
    process = cluster.start("n0", "check-collective")
    assert process.stdin is not None
    process.stdin.write(json.dumps(payload).encode() + b"\n")
    process.stdin.flush()
    files = [cluster.base / f"pid-{rank}" for rank in (0, 1)]
    until(lambda: all(file.exists() and file.read_text().strip() for file in files), seconds=30, what="both ranks")
    pids = [int(file.read_text()) for file in files]
    for name in cluster.names:
        assert cluster.verb(name, "check-end", RUN)["left"] == []
    wait_gone(pids)
    out, _ = process.communicate(timeout=60)
    assert all_reduce(["n0", "n1"], json.loads(out)["results"][0]).error


def test_nothing_is_measured_while_a_run_is_active(cluster: NodeCluster) -> None:
    cluster.start_run(AT_WORK)
    cluster.wait_for_log("at work", times=2)
    payload = {"bucket": cluster.bucket_url, "object": OBJECT}
    for name in cluster.names:
        assert cluster.verb(name, "check-machine", payload=payload)["active"] == RUN
    answer = cluster.verb("n0", "check-collective", payload={"run": RUN, "jobs": [], "seconds": 1, "size": 4})
    assert answer["active"] == RUN


def test_check_rank_alone_does_nothing(cluster: NodeCluster) -> None:
    assert "started by check-collective alone" in cluster.verb("n0", "check-rank")["error"]
