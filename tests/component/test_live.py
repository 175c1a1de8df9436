"""`make live`: what it asks, when it refuses, what it takes out of fixtures, and that it deletes everything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live import hard_end
from tests.live.anonymize import Anonymizer
from tests.support.harness import until

ROOT = Path(__file__).resolve().parents[2]
MINE = ("my-lab-4711", "live-a1b2c3", "ann", "annas-macbook")

OPERATION = {
    "kind": "compute#operation",
    "id": "4611686018427387904",
    "name": "operation-1763801234567-63f0a1b2c3d4e-0a1b2c3d-4e5f6071",
    "operationType": "bulkInsert",
    "targetLink": "https://www.googleapis.com/compute/v1/projects/my-lab-4711/zones/us-central1-a",
    "clientOperationId": "1B4E28BA-2FA1-11D2-883F-0016D3CCA427",
    "user": "ann.smith@example.org",
    "metadata": {"fingerprint": "kX5f0s1bQ2M="},
    "warnings": [
        "service-987654321098@compute-system.iam.gserviceaccount.com",
        "ann-ci@my-lab-4711.iam.gserviceaccount.com hvdcloud@my-lab-4711.iam.gserviceaccount.com",
    ],
}
SERIAL = """\
[    3.14] root: live-a1b2c3-1 has 10.128.0.7 and 34.72.11.9, MAC 42:01:0a:80:00:07, rootfs is there, version 1.2.3
hvdcloud: host key ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6b1V9Z3W0xXnq0w7kq8g2Yb1h3u5j7k9m1o3q5s7u9 ann@annas-macbook
hvdcloud: pulled my-lab-4711-docker.pkg.dev%2Fmy-lab-4711 by ya29.c.c0ASRK0GbX-Xy_12
at 12:34:56 from 2600:1900:4000::a:1
"""


def test_nothing_tells_whose_project_it_was() -> None:
    project, name, user, machine = MINE
    taker = Anonymizer({project: "my-project", name: "live"}, {user: "me", machine: "my-laptop"})
    text = taker.document(OPERATION) + taker.text(SERIAL)
    for mine in (
        *MINE, "10.128.0.7", "34.72.11.9", "42:01:0a:80", "2600:1900", "AAAAC3", "ya29", "smith", "ann-ci", "4611686",
        "987654321098", "1763801234567", "1B4E28BA", "kX5f0s1bQ2M",
    ):  # fmt: skip
        assert not re.search(rf"(?<![a-z]){re.escape(mine)}", text, re.IGNORECASE), mine
    for kept in ("bulkInsert", "zones/us-central1-a", "hvdcloud@my-project.iam", "version 1.2.3", "12:34:56", "rootfs"):
        assert kept in text


# A person's command: it starts another one, `working`, and says that to the end that it has armed.
STARTER = """
import subprocess, sys, time
from pathlib import Path
from tests.live.hard_end import HardEnd

folder, seconds, how = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
delete = ["touch", str(folder / "deleted")]
work = f"trap 'touch {folder}/rolled-back; exit' TERM; touch {folder}/working; while :; do sleep 0.1; done"
with HardEnd(delete, seconds=seconds, log=folder / "log") as end:
    with subprocess.Popen(["sh", "-c", work]) as working:
        end.running(working.pid)
        while not (folder / "working").exists():
            time.sleep(0.01)
        (folder / "armed").touch()
        if how == "waits":
            time.sleep(60)
        working.terminate()
    if how == "disarms":
        end.disarm()
"""


def start(folder: Path, *, seconds: float, how: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", STARTER, str(folder), str(seconds), how]
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    until((folder / "armed").exists, what="the end to be armed")
    return process


def test_a_killed_command_is_rolled_back_and_everything_deleted(tmp_path: Path) -> None:
    process = start(tmp_path, seconds=600, how="waits")
    process.send_signal(signal.SIGKILL)
    process.wait()
    until((tmp_path / "deleted").exists, what="the deletion")
    assert (tmp_path / "rolled-back").exists()
    assert "not everything was deleted" in (tmp_path / "log").read_text()


def test_everything_is_deleted_when_the_time_is_over(tmp_path: Path) -> None:
    process = start(tmp_path, seconds=10, how="waits")
    until((tmp_path / "deleted").exists, what="the deletion")
    assert process.wait(timeout=300) == -signal.SIGKILL
    assert (tmp_path / "rolled-back").exists()
    assert "the time is over" in (tmp_path / "log").read_text()


def test_a_deletion_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_end, "PAUSES", (0.01, 0.01))
    tries = tmp_path / "tries"

    def delete(succeeds_at: int) -> Sequence[str]:
        return ["sh", "-c", f"echo >>{tries}; [ $(wc -l <{tries}) -ge {succeeds_at} ]"]

    assert hard_end.delete(delete(2)) == 0
    assert len(tries.read_text().splitlines()) == 2
    assert hard_end.delete(delete(99)) == 1


def test_only_its_own_target_runs_it() -> None:
    rules = re.split(r"(?m)^(?=[a-z-]+:)", (ROOT / "Makefile").read_text())
    assert [
        rule.partition(":")[0] for rule in rules if "tests.live" in rule or re.search(r":.*\blive\b.*##", rule)
    ] == ["live"]
    assert list((ROOT / "tests/live").rglob("test_*")) == []
