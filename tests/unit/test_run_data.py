"""What is said of a run's data sets: by nodes, in its state, and to people."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.config.data import DataConfig
from hvdcloud.errors import CapacityError, CredentialsError, ExitCode, HvdcloudError, NodeError, UsageError
from hvdcloud.lifecycle.run_result import result_of
from hvdcloud.lifecycle.run_spec import data_request
from hvdcloud.runs.data_progress import RunData, progress, summary
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.spec import About
from hvdcloud.runs.state import RunState

RUN = "20261121-101112-abcdef"
SETS = {
    "train": DataConfig(source="gs://lake/train"),
    "val": DataConfig(source="file:///data/val"),
    "shards": DataConfig(source="gs://lake/records", per_node="shard"),
}


def state(*nodes: NodeData, **more: Any) -> RunState:
    return RunState(run=RUN, state="starting", data=nodes, **more)


def node(phase: str, **more: Any) -> NodeData:
    return NodeData(node="d-0", phase=phase, **more)


@pytest.mark.parametrize(("phase", "waits"), [("fetching", True), ("failed", True), ("ready", False)])
def test_a_run_waits_as_long_as_a_node_is_not_ready(phase: str, *, waits: bool) -> None:
    assert state(node("ready"), node(phase)).waits_for_data is waits
    running = state(node(phase))
    running.state = "running"
    assert not running.waits_for_data
    assert not state().waits_for_data


def test_progress_is_said_in_words() -> None:
    assert progress(node("fetching", bytes=400_000_000, total_bytes=1_000_000_000)) == "fetching, 40 % of 1.0 GB"
    assert progress(node("fetching")) == "fetching"
    assert progress(node("failed", error="data set train: gone")) == "failed: data set train: gone"
    assert progress(node("of no phase that is known")) == "not known"


def test_what_waiting_cost_is_said_in_seconds_and_of_gpus() -> None:
    ready = [node("ready", bytes=2 * 10**9), node("ready", bytes=10**9)]
    assert summary(state(*ready, data_seconds=42.0)) == "2.0 GB on each of 2 nodes after 42.0 s"
    with_gpus = state(*ready, data_seconds=42.0, about=About(gpus=8))
    assert summary(with_gpus).endswith("after 42.0 s, in which its GPUs waited 5 min 36 s together")
    assert RunData.of(with_gpus) == RunData(nodes=tuple(ready), seconds=42.0)
    assert summary(state(ready[0], data_seconds=1.0)) == "2.0 GB on its node after 1.0 s"
    assert summary(state(node("ready"), node("ready"), data_seconds=4.1)) == "mounted on each of 2 nodes after 4.1 s"
    assert (summary(state(*ready)), summary(state()), RunData.of(state())) == ("", "", None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, UsageError), (3, CredentialsError), (4, CapacityError), (5, NodeError), (None, NodeError), (99, NodeError)],
)
def test_a_run_whose_data_do_not_come_ends_as_the_node_says(code: int | None, kind: type[HvdcloudError]) -> None:
    failed = node("failed", error="data set train needs 5 GB", hint="a larger gce.disk_gb", exit_code=code)
    ended = state(node("ready"), failed, result="failed", reason="node d-0: data set train needs 5 GB")
    ended.state = "done"
    with pytest.raises(HvdcloudError) as caught:
        result_of("d", ended).raise_for_failure()
    assert type(caught.value) is kind
    assert caught.value.code == (ExitCode(code) if code in (2, 3, 4, 5) else ExitCode.NODE)
    assert caught.value.message == f"run {RUN} did not start: node d-0: data set train needs 5 GB"
    assert caught.value.hint == "a larger gce.disk_gb"


def test_a_node_that_could_not_join_is_not_why_a_run_failed_that_had_begun() -> None:
    ended = state(node("failed", error="x", exit_code=4), result="failed", exit_code=3, data_seconds=1.0)
    ended.state = "done"
    with pytest.raises(HvdcloudError) as caught:
        result_of("d", ended).raise_for_failure()
    assert caught.value.code == ExitCode.JOB


def test_nodes_are_asked_for_buckets_and_find_folders_mounted() -> None:
    request = data_request(SETS, nodes=3, endpoint="http://storage")
    assert request is not None
    assert (request.index, request.count, request.endpoint) == (0, 3, "http://storage")
    assert [(each.name, each.source, each.per_node, each.mounted) for each in request.sets] == [
        ("train", "gs://lake/train", "all", False),
        ("val", "file:///var/lib/hvdcloud/data/val", "all", True),
        ("shards", "gs://lake/records", "shard", False),
    ]
    assert data_request({}, nodes=3, endpoint=None) is None
