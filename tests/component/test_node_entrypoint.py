"""What a node tells a metadata server about itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdcloud.node.boot import entrypoint
from hvdcloud.runs.spec import DataRequest, DataSet
from hvdcloud.storage.open import open_bucket
from tests.standins.metadata.guest_attributes import Metadata, metadata_server
from tests.standins.storage import running_server
from tests.support.harness import until
from tests.support.nodes import REPOSITORY, node_environment


def start_node(root: Path, metadata: Metadata | None, **environ: str) -> subprocess.Popen[str]:
    """The entrypoint as a process, without a key to let anybody in: it fails at its first step."""
    environment = {**node_environment(root), **environ}
    if metadata is not None:
        environment["HVDCLOUD_METADATA"] = metadata.url
    return subprocess.Popen(
        [sys.executable, "-m", "hvdcloud.node", "entrypoint"], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_what_is_printed_is_published_word_for_word(tmp_path: Path) -> None:
    with metadata_server() as metadata:
        node = start_node(tmp_path, metadata)
        out, _ = node.communicate(timeout=30)
    printed = [json.loads(line.partition(" ")[2]) for line in out.splitlines()]
    assert node.returncode == 1
    assert metadata.taken == printed
    assert [status["status"] for status in printed] == ["starting", "failed"]
    assert printed[1]["step"] == "authorized key"


def test_without_a_metadata_server_there_is_standard_output_alone(tmp_path: Path) -> None:
    out, _ = start_node(tmp_path, None).communicate(timeout=30)
    assert [json.loads(line.partition(" ")[2])["status"] for line in out.splitlines()] == ["starting", "failed"]


def test_a_busy_or_broken_metadata_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_server(503, 0, 429) as metadata:
        monkeypatch.setenv(entrypoint.METADATA_VARIABLE, metadata.url)
        entrypoint.publish({"status": "ready", "host_key": "ssh-ed25519 AAAA"})
    assert metadata.taken == [{"status": "ready", "host_key": "ssh-ed25519 AAAA"}]
    assert metadata.asked == 4


def test_a_node_that_cannot_publish_its_host_key_has_failed(tmp_path: Path) -> None:
    with metadata_server(403) as metadata:
        node = start_node(tmp_path, metadata)
        out, _ = node.communicate(timeout=30)
    last = json.loads(out.splitlines()[-1].partition(" ")[2])
    assert node.returncode == 1
    assert metadata.asked == 1
    assert (last["status"], last["step"]) == ("failed", "metadata")
    assert "403" in last["error"]


def test_a_metadata_server_that_stays_away_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(entrypoint.METADATA_VARIABLE, "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(entrypoint._StepError, match=r"does not take the node's status: .*refused"):
        entrypoint.publish({"status": "ready"}, seconds=0.5)
    assert time.monotonic() - began >= 0.4
    assert "ready" in capsys.readouterr().out


def test_a_node_that_is_told_to_end_does_not_wait_for_the_metadata_server(tmp_path: Path) -> None:
    with metadata_server(*[503] * 1000) as metadata:
        node = start_node(tmp_path, metadata)
        until(lambda: metadata.asked, seconds=20, what="the first status")
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=120)


def test_a_driver_that_is_mounted_is_found_by_the_loader_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / "called"
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(f"#!/bin/sh\ntouch {called}\n")
    ldconfig.chmod(0o755)
    monkeypatch.setattr(entrypoint, "LDCONFIG", str(ldconfig))
    monkeypatch.setattr(entrypoint, "DRIVER", tmp_path / "lib64")
    entrypoint._find_driver()
    assert not called.exists()
    (tmp_path / "lib64").mkdir()
    monkeypatch.setenv("PATH", "/usr/bin")
    entrypoint._find_driver()
    assert called.exists()
    assert os.environ["PATH"] == f"/usr/bin:{tmp_path}/bin"


def test_a_loader_that_does_not_take_the_driver_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoint, "LDCONFIG", "/bin/false")
    monkeypatch.setattr(entrypoint, "DRIVER", tmp_path)
    with pytest.raises(OSError, match="/bin/false failed"):
        entrypoint._find_driver()


def test_data_sets_are_fetched_from_the_start_on(tmp_path: Path) -> None:
    with running_server(tmp_path / "storage") as server:
        open_bucket("gs://bucket", endpoint=server.url).write("train/a.bin", b"abc")
        request = DataRequest(sets=(DataSet(name="train", source="gs://bucket/train"),), endpoint=server.url)
        child = """
import os
from hvdcloud.node.boot import entrypoint
entrypoint._forget_dead_runs()
entrypoint._fetch_data()
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
        environment = {
            **{name: value for name, value in os.environ.items() if name != entrypoint.METADATA_VARIABLE},
            "HVDCLOUD_NODE_ROOT": str(tmp_path / "node"),
            "PYTHONPATH": str(REPOSITORY),
            entrypoint.DATA_VARIABLE: json.dumps(request.to_json()),
        }
        subprocess.run([sys.executable, "-c", child], env=environment, check=True, timeout=120)
        file = tmp_path / "node/var/lib/hvdcloud/data/train/a.bin"
        until(file.exists, seconds=60, what="the data set")
        assert file.read_bytes() == b"abc"
