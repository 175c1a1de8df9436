"""A node proves, before it is ready, that it may use its bucket as a run needs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.node.boot import bucket_proof, entrypoint
from hvdcloud.providers.gce.ops.node_rights import RECORDS
from hvdcloud.storage.open import open_bucket
from tests.standins.metadata.guest_attributes import metadata_server
from tests.standins.storage import StorageServer, running_server
from tests.standins.storage.iam import Iam
from tests.support.harness import until
from tests.support.nodes import REPOSITORY

NODE = "serviceAccount:hvdcloud@lab.iam.gserviceaccount.com"
ADDS = {"role": "roles/storage.objectCreator", "members": [NODE]}
READS = {"role": "roles/storage.objectViewer", "members": [NODE]}
REPLACES = {"role": "roles/storage.objectUser", "members": [NODE], "condition": {"expression": RECORDS}}


@pytest.fixture
def bindings() -> list[dict[str, Any]]:
    return [ADDS, READS, REPLACES]


@pytest.fixture
def server(tmp_path: Path, bindings: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageServer]:
    """A bucket in which everybody is the node."""
    iam = Iam(lambda _: NODE, bindings)
    with running_server(tmp_path / "server", iam=iam, keep_generations=True) as server:
        monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path / "node"))
        monkeypatch.setenv(bucket_proof.BUCKET_VARIABLE, "gs://bucket/runs")
        monkeypatch.setenv(bucket_proof.ENDPOINT_VARIABLE, server.url)
        yield server


def test_with_the_rights_that_setup_grants_it_succeeds_and_leaves_one_object(server: StorageServer) -> None:
    for _ in ("a first boot", "a second one"):
        assert bucket_proof.main() == {"ok": True}
    (left,) = open_bucket("gs://bucket", endpoint=server.url).list("")
    assert left.name.startswith("runs/.hvdcloud/proof-")


@pytest.mark.parametrize(
    ("given", "refused"),
    [([], "create"), ([READS], "create"), ([ADDS], "read"), ([REPLACES], "read"), ([ADDS, READS], "replace")],
    ids=["nothing", "reads", "adds", "only records", "no records"],
)
def test_what_is_missing_is_named(
    server: StorageServer, bindings: list[dict[str, Any]], given: Sequence[dict[str, Any]], refused: str
) -> None:
    bindings[:] = given
    answer = bucket_proof.main()
    assert answer["refused"] == refused
    assert "does not have storage.objects." in answer["error"]


def test_a_missing_bucket_is_no_matter_of_rights(server: StorageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bucket_proof.BUCKET_VARIABLE, "gs://nowhere")
    assert bucket_proof.main() == {"error": "the bucket gs://nowhere does not exist"}


BOOT = """
import signal, sys
from hvdcloud.node.boot import entrypoint
signal.pthread_sigmask(signal.SIG_BLOCK, entrypoint._WAITED_FOR)
entrypoint.REFUSED_PAUSE_SECONDS = float(sys.argv[1])
entrypoint._forget_dead_runs()
try:
    print("proven" if entrypoint._prove_bucket() else "told to end")
except entrypoint._StepError as error:
    sys.exit(entrypoint._fail(error))
"""


def boot(environ: Mapping[str, str] | None = None, *, pause: float = 0.2) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(environ or {})}
    return subprocess.Popen(
        [sys.executable, "-c", BOOT, str(pause)], env=environment, stdout=subprocess.PIPE, text=True
    )


def statuses(out: str) -> list[dict[str, Any]]:
    return [json.loads(line.partition(" ")[2]) for line in out.splitlines() if line.startswith("hvdcloud-status ")]


def test_a_refused_node_fails_and_says_what_it_lacks(server: StorageServer, bindings: list[dict[str, Any]]) -> None:
    bindings.clear()
    with metadata_server() as metadata:
        node = boot({entrypoint.METADATA_VARIABLE: metadata.url})
        out, _ = node.communicate(timeout=300)
    assert node.returncode == 1
    (said,) = statuses(out)
    assert (said["status"], said["step"], said["refused"]) == ("failed", "bucket", "create")
    assert metadata.taken == [said]


def test_a_grant_that_is_young_is_waited_for(server: StorageServer, bindings: list[dict[str, Any]]) -> None:
    given = [*bindings]
    bindings.clear()
    node = boot({bucket_proof.SETTLED_VARIABLE: str(time.time() + 300)})
    until(lambda: server.requests, what="the first attempt")
    bindings[:] = given
    out, _ = node.communicate(timeout=300)
    assert node.returncode == 0
    assert out.splitlines()[-1] == "proven"
    assert {said["status"] for said in statuses(out)} == {"not allowed to use the bucket yet"}


def test_a_node_that_is_told_to_end_does_not_wait(server: StorageServer, bindings: list[dict[str, Any]]) -> None:
    bindings.clear()
    node = boot({bucket_proof.SETTLED_VARIABLE: str(time.time() + 3000)}, pause=600)
    until(lambda: server.requests, what="the first attempt")
    node.send_signal(signal.SIGTERM)
    out, _ = node.communicate(timeout=300)
    assert out.splitlines()[-1] == "told to end"
