"""Laptop and node of different versions understand each other: what they say of a run is as it was recorded.

golden/run-conversation.json was recorded with the program of commit c1797fc: the answers of its nodes, and what its
laptop sends. Times, process ids and this test's own folders are replaced by words.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko
import pytest

from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.config.model import Config
from hvdcloud.console import plain
from hvdcloud.errors import NodeError
from hvdcloud.lifecycle.run import start
from hvdcloud.lifecycle.run_model import result_of
from hvdcloud.lifecycle.run_options import RunOptions
from hvdcloud.providers.base import NodeBucket
from hvdcloud.runs.state import RunState
from tests.support.elastic_nodes import ElasticNodes, elastic_nodes, needs_namespaces
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, node_cluster
from tests.support.vanishing import Laptop, NewVm, Program

RECORDED: dict[str, Any] = json.loads(Path(__file__).parents[1].joinpath("golden/run-conversation.json").read_text())
REWORDED = {"started detached": "left to run without anybody who follows it"}
"""Events whose text, which only people read, has changed since the recording; by the new one."""
ADDED = {"launched", "training_since", "training_until"}
"""Keys that a state has gained since the recording; earlier laptops do not read them."""
ABOUT = {"provider": "local", "command": "python train.py", "dollars_per_hour": 0.0}


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def told(value: Any, words: Mapping[str, str]) -> Any:
    """An answer without what differs between two runs."""
    if isinstance(value, dict):
        found = {told(key, words): told(each, words) for key, each in value.items() if key not in ADDED}
        if "sample" in found:
            found["sample"] = "SAMPLE"
        if "events" in found:
            found["events"] = {REWORDED.get(each["event"], each["event"]): sorted(each) for each in found["events"]}
        return found
    if isinstance(value, list):
        return [told(each, words) for each in value]
    if isinstance(value, float):
        return "NUMBER"
    if isinstance(value, str):
        for text, word in words.items():
            value = value.replace(text, word)
        return re.sub(r"\d+\.\d+ s", "NUMBER s", value)
    return value


def static_run(cluster: NodeCluster) -> list[Any]:
    """What the nodes of a run that fails answer."""
    going = cluster.base / "told"
    script = (
        "import os, pathlib, time\n"
        "rank = int(os.environ.get('HOROVOD_RANK', '0'))\n"
        "pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'], f'of-{rank}').write_text('weights')\n"
        "print('at work', flush=True)\n"
        f"while not pathlib.Path({str(going)!r}).exists():\n    time.sleep(0.01)\n"
        "time.sleep(600 if rank == 0 else 0)\nraise SystemExit(3)"
    )
    said: list[Any] = [cluster.verb("n0", "state", RUN), cluster.verb("n0", "look")]
    said += cluster.prepare([sys.executable, "-c", script])
    request = {
        "run": RUN, "cluster": "digits", "hosts": [{"name": name, "index": 0, "slots": 1} for name in cluster.names],
        "np": 2, "horovodrun": ["horovodrun", "--gloo", "-np", "2", "-H", "n0:1,n1:1"], "gloo_timeout": 60.0,
        "controller": "gloo", "elastic": None, "down_when_done": False, "detached": True,
        "about": ABOUT,
    }  # fmt: skip
    said.append(cluster.verb("n0", "launch", RUN, payload=request))
    cluster.wait_for_log("at work", times=2)
    until(lambda: cluster.state()["state"] == "running", seconds=20, what="a running run")
    said += [cluster.verb("n0", "state", RUN), cluster.verb("n1", "look"), cluster.prepare(["true"])[0]]
    said.append(cluster.verb("n1", "flush"))
    going.touch()
    cluster.wait_done()
    said += [cluster.verb("n0", verb, *run) for verb, *run in (["state"], ["stop", RUN], ["flush"])]
    seen = cluster.verb("n0", "look")
    seen["log"] = sorted(seen["log"]["text"].splitlines())
    said.append(seen)
    _, errors = cluster.start("n0", "logs", RUN, "--follow", "--offset", "7").communicate(timeout=30)
    said.append(json.loads(errors.splitlines()[-1]))
    said += [json.loads((cluster.run_dir(name) / "uploads.json").read_text()) for name in cluster.names]
    said += [json.loads((cluster.run_dir("n1") / "ranks/1.json").read_text())]
    words = {str(cluster.base): "BASE", RUN: "RUN", sys.executable: "PYTHON"}
    return list(told(without_ids(said), words))


def without_ids(value: Any) -> Any:
    """Process ids differ."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        return {key: "PID" if key == "pid" else without_ids(each) for key, each in value.items()}
    return value


def elastic_run(cluster: ElasticNodes) -> list[Any]:
    """What the nodes of an elastic run answer, one of which is sent away."""
    head, one, two = cluster.names
    cluster.begin()
    said: list[Any] = [cluster.verb(head, "state"), cluster.admit(head)]
    said.append(cluster.dismiss(two))
    cluster.wait_for_world([head, one])
    said.append(cluster.verb(head, "state"))
    for name in (head, one):
        cluster.order(name, "raise SystemExit(0)")
    cluster.wait_done()
    seen = cluster.verb(head, "look")
    del seen["log"]
    said.append(seen)
    words = {str(cluster.base): "BASE", RUN: "RUN", head: "NODE-0", one: "NODE-1", two: "NODE-2"}
    return list(told(without_ids(said), words))


def test_a_node_answers_as_it_did(cluster: NodeCluster) -> None:
    for said, recorded in zip(static_run(cluster), RECORDED["static"], strict=True):
        assert said == recorded


@needs_namespaces
def test_a_node_of_an_elastic_run_answers_as_it_did() -> None:
    with elastic_nodes(3) as cluster:
        for said, recorded in zip(elastic_run(cluster), RECORDED["elastic"], strict=True):
            assert said == recorded


def hears(said: list[Any], *answers: str) -> Program:
    """A verb that notes the line that it is sent, and has its answers ready."""

    def run(channel: paramiko.Channel) -> None:
        with channel.makefile("rb") as lines:
            said.append(json.loads(lines.readline()))
            for answer in answers:
                channel.sendall(f"{answer}\n".encode())
        channel.send_exit_status(0)
        channel.close()

    return run


def start_run(laptop: Laptop, new_vm: NewVm, tmp_path: Path, **more: Any) -> list[Any]:
    """What a laptop sends to a node of the recording's version; `more`: of section `run`."""
    said: list[Any] = []
    programs = {
        "hvdcloud-node prepare": hears(said, '{"want": []}', '{"ok": true, "restored": 0}'),
        "hvdcloud-node launch": hears(said, '{"ok": true}'),
    }
    context, cluster, machines = laptop.context([new_vm(programs)])
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    run = {"command": "python train.py", "env": {"A": "b"}, "slots_per_node": 2, **more}
    context.config = Config.model_validate({"name": "digits", "nodes": 1, "run": run})
    context.config._project_dir = tmp_path / "project"
    node = MemberRecord(name="digits-0", cores=4, gpus=0, interface="eth0")
    context.state.save(ClusterRecord(id=cluster.id, nodes=(node,), size=1))
    machines.__dict__["bucket_as_seen_by_nodes"] = lambda _: NodeBucket(bucket="gs://bucket")

    start(context, cluster, RunOptions(down_when_done=True))
    return said


@pytest.mark.parametrize("kind", ["static", "elastic"])
def test_a_laptop_sends_a_run_as_it_did(laptop: Laptop, new_vm: NewVm, tmp_path: Path, kind: str) -> None:
    said = start_run(laptop, new_vm, tmp_path, **({"elastic": {"min": 1, "max": 3}} if kind == "elastic" else {}))
    said[1]["about"] = sorted(said[1]["about"])
    # Younger than the recording; a node of that time does not look at it.
    assert [each.pop("stuck") for each in said] == [1800.0, 1800.0]
    # The conversation was recorded without files.
    assert [each[0] if isinstance(each, list) else each["path"] for each in said[0]["files"]] == ["train.py"]
    said[0]["files"] = []
    assert said[0].pop("workspace_bytes") == 10**9
    assert said[0].pop("grace") == 30.0
    assert told(said, {str(tmp_path): "FOLDER", said[1]["run"]: "RUN"}) == RECORDED["sent"][kind]


@pytest.mark.parametrize("kind", ["static", "elastic"])
def test_a_laptop_reads_what_nodes_answered_as_it_did(kind: str) -> None:
    states = [answer["state"] for answer in RECORDED[kind] if "state" in answer and "sample" in answer]
    states += [each for answer in RECORDED[kind] for each in answer.get("runs", ()) if isinstance(each, dict)]
    assert states
    read = [plain(result_of("digits", RunState.from_json(timed(each)))) for each in states]
    # Younger than the recording, and empty where a node of that time says nothing of it.
    for key in ("data", "slow_ranks", "stuck"):
        assert [each.pop(key) for each in read] == [None] * len(read)
    assert [each.pop("other_files") for each in read] == [0] * len(read)
    for key in ("left_out", "attempts", "nodes_lost", "nodes_preempted", "waits"):
        assert [list(each.pop(key)) for each in read] == [[]] * len(read)
    assert [(each.pop("missing_module"), each.pop("shares_gpu")) for each in read] == [("", False)] * len(read)
    assert json.loads(json.dumps(read)) == RECORDED["read"][kind]


def timed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded state with times in the place of the words."""
    members = [{**each, "since": 2.0} for each in state.get("members", ())]
    return {**state, "started": 1.0, "ended": 3.5} | ({"members": members} if members else {})


@pytest.mark.parametrize("want", ["[7]", "[-1]", "[0, 0]", "{}", "[" * 5000, "[1e999]"])
def test_a_node_that_asks_for_what_the_project_has_not_gets_nothing(
    laptop: Laptop, new_vm: NewVm, tmp_path: Path, want: str
) -> None:
    answer = f'{{"want": {want}}}' if "[[" not in want else f'{{"want": {want}'
    programs = {"hvdcloud-node prepare": hears([], answer)}
    context, cluster, machines = laptop.context([new_vm(programs)])
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    context.config = Config.model_validate({"name": "digits", "nodes": 1})
    context.config._project_dir = tmp_path / "project"
    node = MemberRecord(name="digits-0", cores=4, gpus=0, interface="eth0")
    context.state.save(ClusterRecord(id=cluster.id, nodes=(node,), size=1))
    machines.__dict__["bucket_as_seen_by_nodes"] = lambda _: NodeBucket(bucket="gs://bucket")
    with pytest.raises(NodeError, match="digits-0 asks for files that the project does not have"):
        start(context, cluster, RunOptions())
