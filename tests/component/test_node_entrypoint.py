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
from tests.standins.metadata.guest_attributes import Metadata, metadata_server
from tests.support.harness import until
from tests.support.nodes import node_environment


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
        out, _ = node.communicate(timeout=300)
    printed = [json.loads(line.partition(" ")[2]) for line in out.splitlines()]
    assert node.returncode == 1
    assert metadata.taken == printed
    assert [status["status"] for status in printed] == ["starting", "failed"]
    assert printed[1]["step"] == "authorized key"


def test_a_node_that_cannot_publish_its_host_key_has_failed(tmp_path: Path) -> None:
    with metadata_server(403) as metadata:
        node = start_node(tmp_path, metadata)
        out, _ = node.communicate(timeout=300)
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
        until(lambda: metadata.asked, what="the first status")
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=300)


def test_a_mounted_driver_is_found_by_the_loader_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
