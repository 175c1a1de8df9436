"""Nodes that are containers: a folder bucket of their own in a volume, and how long they may live."""

from __future__ import annotations

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, LABEL_MANAGED_BY, LABEL_NODE
from hvdcloud.providers.engine.view import LABEL_BUCKET
from tests.support.ssh_samples import SPEC, request


def test_in_place_of_a_folder_of_this_machine_each_node_has_one_of_its_own() -> None:
    (mount,) = request(SPEC).body["HostConfig"]["Mounts"]
    assert (mount["Type"], mount["Source"], mount["Target"]) == (
        "volume",
        "digits-1-abc123",
        "/var/lib/hvdcloud/bucket",
    )
    # By its labels `list` and `down` find it when its container is gone.
    labels = mount["VolumeOptions"]["Labels"]
    assert (labels[LABEL_MANAGED_BY], labels[LABEL_CLUSTER], labels[LABEL_ID]) == ("hvdcloud", "digits", "abc123")
    assert (labels[LABEL_NODE], labels[LABEL_BUCKET]) == ("1", SPEC.bucket)


def test_the_container_knows_its_time_limit() -> None:
    assert "HVDCLOUD_TIME_LIMIT=43200" in request(SPEC, longest_seconds=43200.0).body["Env"]
    assert "HVDCLOUD_TIME_LIMIT" not in str(request(SPEC).body["Env"])
