"""Nodes that are containers: a folder bucket of their own in a volume, how long they may live, when they are ready."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from typing import Any

import pytest

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, LABEL_MANAGED_BY, LABEL_NODE, Node, NodeState
from hvdcloud.errors import NodeError
from hvdcloud.providers.engine.nodes import EngineNodes, started_at
from hvdcloud.providers.engine.view import LABEL_BUCKET
from hvdcloud.remote.keys import new_key_pair
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


# --- until a node is ready --------------------------------------------------------------------------------------------

KEY = new_key_pair("n").public.rpartition(" ")[0]
READY = f'hvdcloud-status {{"status": "ready", "host_key": "{KEY}"}}'


class Booting:
    """An engine's API on which a container says more at each look."""

    def __init__(self, *said: str, ends: bool = False) -> None:
        self._said, self._ends, self._looks = said, ends, 0

    def inspect_container(self, _: str) -> dict[str, Any]:
        self._looks += 1
        return {"State": {"Running": not self._ends or self._looks < len(self._said)}}

    def logs(self, _: str, **__: Any) -> bytes:
        return "\r\n".join(self._said[: self._looks]).encode()


def until_ready(api: Booting, *, seconds: float = 60.0, given_up: bool = False) -> str:
    event = threading.Event()
    if given_up:
        event.set()
    node = Node(name="digits-0", index=0, id="c0", state=NodeState.STARTING)
    return EngineNodes(api).until_ready(node, time.monotonic() + seconds, event)


def test_a_node_is_ready_as_soon_as_its_program_says_so_with_a_host_key() -> None:
    assert until_ready(Booting("installing", 'hvdcloud-status {"status": "ready", "host_key": "x"}', READY)) == KEY


def test_a_node_that_ends_is_too_late_or_is_given_up_is_an_error_with_what_it_said() -> None:
    failed = 'hvdcloud-status {"status": "failed", "step": "start", "error": "no room"}'
    with pytest.raises(NodeError, match="node digits-0 stopped while coming up") as ended:
        until_ready(Booting("installing", failed, ends=True))
    assert "start: no room" in ended.value.details
    with pytest.raises(NodeError, match="did not come up in time"):
        until_ready(Booting("installing"), seconds=0.0)
    with pytest.raises(NodeError):
        until_ready(Booting("installing"), given_up=True)
