"""A run is sampled on every node, its samples outlive the nodes, and one question is enough for a screen."""

from __future__ import annotations

import json

from hvdcloud.checkpoints.manifest import events_name, list_runs, load_manifests, samples_name
from hvdcloud.storage.folder import FolderBucket
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster

TRAINS = """
import os, pathlib, time
folder = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
(folder / f"weights-{os.environ['HOROVOD_RANK']}.pt").write_text("w")
print("epoch 1/2: loss 0.5", flush=True)
while not os.path.exists(os.environ["HVDCLOUD_NODE_ROOT"] + "/enough"):
    time.sleep(0.05)
print("epoch 2/2: loss 0.25", flush=True)
"""


def enough(cluster: NodeCluster) -> None:
    for name in cluster.names:
        (cluster.root(name) / "enough").touch()


def test_samples_of_every_node_are_beside_the_checkpoints_and_are_none(cluster: NodeCluster) -> None:
    cluster.start_run(TRAINS)
    cluster.wait_for_log("epoch 1/2", times=2)
    for name in cluster.names:
        # Each node samples at its own pace: the first sample of one says nothing of the other's.
        newest = cluster.run_dir(name) / "sample.json"
        until(newest.exists, what=f"a sample of {name}")
    enough(cluster)
    assert cluster.wait_done()["result"] == "succeeded"
    bucket = FolderBucket(cluster.bucket)
    for node in (0, 1):
        samples = [json.loads(line) for line in bucket.read(samples_name("digits", RUN, node)).splitlines()]
        assert len(samples) >= 2
        assert {"t", "cpu", "memory", "memory_total", "received", "sent", "waiting"} <= set(samples[-1])
        assert ("log" in samples[-1]) == (node == 0)
        assert samples[-1]["waiting"] == 0
    manifests = load_manifests(bucket, cluster="digits", run=RUN)
    assert sorted(entry.name for manifest in manifests for entry in manifest.files) == [
        "@node-1/weights-1.pt",
        "weights-0.pt",
    ]
    assert list_runs(bucket, "digits") == [RUN]
    until(lambda: bucket.stat(events_name("digits", RUN)), what="the events in the bucket")


def test_one_answer_has_the_sample_the_state_and_the_log_from_where_the_last_ended(cluster: NodeCluster) -> None:
    cluster.start_run(TRAINS)
    cluster.wait_for_log("epoch 1/2", times=2)
    until(lambda: (cluster.run_dir("n0") / "sample.json").exists(), what="a sample")
    head, other = cluster.verb("n0", "look"), cluster.verb("n1", "look")
    assert head["run"] == other["run"] == RUN
    assert head["state"]["state"] == "running"
    assert head["log"]["text"].count("epoch 1/2: loss 0.5\n") == 2
    assert abs(head["sample"]["t"] - head["now"]) < 10
    assert "state" not in other
    assert other["sample"]["memory"] > 0
    enough(cluster)
    cluster.wait_done()
    later = cluster.verb("n0", "look", "--offset", str(head["log"]["offset"]))
    assert "epoch 1/2" not in later["log"]["text"]
    assert later["log"]["text"].count("epoch 2/2") == 2
    assert later["state"]["result"] == "succeeded"
