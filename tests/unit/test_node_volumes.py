"""Nodes that are containers: a folder bucket of their own in a volume, how long they may live, when they are ready."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, LABEL_MANAGED_BY, LABEL_NODE
from hvdcloud.providers.engine.nodes import started_at
from hvdcloud.providers.engine.view import LABEL_BUCKET
from tests.support.ssh_samples import SPEC, request


def test_in_place_of_a_folder_of_this_machine_each_node_has_one_of_its_own() -> None:
    body = request(SPEC).body
    assert body["mounts"] == {"digits-1-abc123": "/var/lib/hvdcloud/bucket"}
    # By its labels `list` and `down` find it when its container is gone.
    labels = body["volumes"]["digits-1-abc123"]
    assert (labels[LABEL_MANAGED_BY], labels[LABEL_CLUSTER], labels[LABEL_ID]) == ("hvdcloud", "digits", "abc123")
    assert (labels[LABEL_NODE], labels[LABEL_BUCKET]) == ("1", SPEC.bucket)


def test_the_container_knows_its_time_limit() -> None:
    assert request(SPEC, longest_seconds=43200.0).body["environment"]["HVDCLOUD_TIME_LIMIT"] == "43200"
    assert "HVDCLOUD_TIME_LIMIT" not in request(SPEC).body["environment"]


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("2026-11-24T08:22:51.123456789Z", 0.123456), ("2026-11-24T08:22:51Z", 0.0), ("2026-11-24T08:22:51.5Z", 0.5)],
)
def test_an_engines_time_is_never_taken_for_a_later_one(text: str, fraction: float) -> None:
    whole = datetime(2026, 11, 24, 8, 22, 51, tzinfo=timezone.utc).timestamp()
    assert started_at(text) == pytest.approx(whole + fraction, abs=1e-6)
