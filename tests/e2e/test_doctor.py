"""`hvdcloud doctor` reports what keeps a run from working and how to fix it, and changes nothing."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cli.main import _run as run_command
from hvdcloud.storage.open import open_bucket
from tests.support.gce_records import ZONES, RecordsCloud
from tests.support.harness import Ended, Project, labelled, project_in

pytestmark = pytest.mark.engine

SECRET = "hunter2-and-more"


@pytest.fixture
def project(records: RecordsCloud, tmp_path: Path) -> Iterator[Project]:
    """Of two nodes with a T4 each, for which everything is as it should be."""
    records.cloud.emulator.reset()
    records.cloud.storage.faults.clear()
    yield well(records, tmp_path)
    records.cloud.emulator.reset()
    records.cloud.storage.faults.clear()


def well(records: RecordsCloud, root: Path, *, gce: dict[str, Any] | None = None, **more: Any) -> Project:
    image = {"repository": records.repository, "requirements": None, "device": "cuda"}
    l4 = {"machine_type": "g2-standard-4", "gpu": None, "zones": list(ZONES[:1])}
    project = records.cloud.project(root, "t-doctor", **{"image": image, "gce": {**l4, **(gce or {})}, **more})
    project.write("train.py", "print('trained')\n")
    return project


class Report:
    """What the command said."""

    def __init__(self, ended: Ended) -> None:
        self.exit_code = ended.exit_code
        self.text = ended.out + ended.err
        self.checks = {check["name"]: check for check in ended.json["result"]["checks"]}
        assert ended.json["exit_code"] == ended.exit_code

    def names(self, *status: str) -> list[str]:
        """The checks that came to one of these."""
        return [name for name, check in self.checks.items() if check["status"] in status]

    def failed(self, name: str, *words: str, exit_code: int) -> None:
        """This check alone failed, what it says (remedy included) has these words, and the command says so too."""
        assert self.names("failed") == [name], self.text
        said = f"{self.checks[name]['message']} {self.checks[name]['hint']}"
        for word in words:
            assert word in said
        assert self.checks[name]["hint"]
        assert self.exit_code == exit_code


def examine(project: Project, *args: str) -> Report:
    """The command, in this process: there are many of them, and what takes longest is to start Python."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, value in project.env().items():
            patch.setenv(name, value)
        exit_code = run_command(["--config", str(project.folder / "hvdcloud.yaml"), "--json", "doctor", *args])
    return Report(Ended(int(exit_code), out.getvalue(), err.getvalue()))


# --- all is well ------------------------------------------------------------------------------------------------------


def test_a_project_without_problems_is_reported_as_such_and_nothing_changes(
    records: RecordsCloud, project: Project
) -> None:
    report = examine(project)
    assert report.exit_code == 0, report.text
    assert report.names("failed", "unknown") == []
    assert list(report.checks)[:3] == ["configuration", "credentials", "service account"]
    assert {entry.http for entry in records.cloud.emulator.log.entries()} == {"GET"}
    assert {method for method, *_ in records.cloud.storage.requests} <= {"GET"}
    assert not (project.state / project.name).exists()


def test_the_table_has_a_line_for_each_check_and_below_it_how_to_fix_it(
    records: RecordsCloud, project: Project
) -> None:
    records.cloud.emulator.google.off.add("compute.googleapis.com")
    out = project.hvdcloud("doctor", expect=3).out.splitlines()
    (number, line), *_ = [(number, line) for number, line in enumerate(out) if line.startswith("✗")]
    assert "compute.googleapis.com has not been used" in line
    assert "→ gcloud services enable compute.googleapis.com --project=test-project" in " ".join(out[number:])
    assert out[0].startswith("✓  configuration ")
    assert "1 failed" in out[-1]


def test_no_secret_and_no_token_is_shown(records: RecordsCloud, project: Project, tmp_path: Path) -> None:
    project = well(records, tmp_path / "more", run={"secrets": ["API_KEY", "OTHER_KEY"]})
    project.environ["API_KEY"] = SECRET
    report = Report(project.hvdcloud("doctor", "--json", "--verbose", expect=2))
    report.failed("secrets", "OTHER_KEY", "export OTHER_KEY", exit_code=2)
    assert "API_KEY" not in report.checks["secrets"]["message"].replace("OTHER_KEY", "")
    for secret in (SECRET, "ya29.", "PRIVATE KEY"):
        assert secret not in report.text


# --- one thing broken at a time ---------------------------------------------------------------------------------------


def test_without_credentials_everything_that_needs_them_is_not_checked(project: Project) -> None:
    project.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(project.folder / "none.json")
    report = Report(project.hvdcloud("doctor", "--json", expect=3))
    report.failed("credentials", "none.json", "gcloud auth application-default login", exit_code=3)
    assert report.checks["zones"]["message"] == "not checked: see credentials"
    assert {"engine", "files", "machine", "GPU and image"} <= set(report.names("ok", "warning"))


def test_credentials_that_google_no_longer_accepts_are_reported(project: Project) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = json.loads(Path(project.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    project.write("old-key.json", json.dumps({**key, "private_key": other.private_bytes(*form).decode()}))
    project.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(project.folder / "old-key.json")
    examine(project).failed("credentials", "not accepted", "name another key", exit_code=3)


def test_a_permission_that_is_missing_is_named(records: RecordsCloud, project: Project) -> None:
    emulator = records.cloud.emulator
    emulator.access.deny(emulator.keys.email, "compute.regions.list")
    examine(project).failed("zones", "ask an administrator for compute.regions.list", exit_code=3)


def test_a_bucket_that_is_not_there_or_not_ours_is_reported(
    records: RecordsCloud, tmp_path: Path, project: Project
) -> None:
    elsewhere = well(records, tmp_path / "more", checkpoints={"bucket": "gs://nowhere/runs"})
    examine(elsewhere).failed("bucket", "gcloud storage buckets create gs://nowhere", exit_code=2)
    examine(project, "--bucket", "file:///tmp/x").failed("bucket", "VMs cannot reach", "hvdcloud setup", exit_code=2)
    records.cloud.storage.fault(path="/b/bucket/o", action={"status": 403})
    examine(project).failed("bucket", "roles/storage.objectUser", exit_code=3)


def test_data_sets_are_looked_at_before_anything_is_made(
    records: RecordsCloud, tmp_path: Path, project: Project
) -> None:
    storage = records.cloud.storage
    open_bucket("gs://bucket", endpoint=storage.url).write("train/a.bin", b"abc")
    named = well(records, tmp_path / "more", data={"train": "gs://bucket/train"})
    report = examine(named)
    assert (report.exit_code, report.checks["data"]["status"]) == (0, "ok")
    assert report.checks["data"]["message"] == "there are objects in gs://bucket/train"
    empty = well(records, tmp_path / "empty", data={"train": "gs://bucket/trian"})
    examine(empty).failed(
        "data", "gs://bucket/trian holds no objects", "gcloud storage rsync --recursive DIR", exit_code=2
    )
    refused = empty.hvdcloud("up", "--yes", expect=2)
    assert "error: data.train: gs://bucket/trian holds no objects" in refused.err
    assert records.left() == []


def test_a_quota_that_is_too_small_is_reported_with_what_is_needed(records: RecordsCloud, project: Project) -> None:
    records.cloud.emulator.set_quota("NVIDIA_L4_GPUS", 1, region="us-central1")
    report = examine(project)
    report.failed("zones", "NVIDIA_L4_GPUS 2 needed, 1 of 1 free", "quotas?project=test-project", exit_code=4)
    assert examine(project, "--nodes", "1").exit_code == 0


# --- how long it takes ------------------------------------------------------------------------------------------------


# --- on this machine --------------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Project:
    project = project_in(tmp_path, "t-doctor")
    project.write("train.py", "print('trained')\n")
    return project


def test_on_this_machine_all_is_well_with_an_engine(local: Project, engine: Any) -> None:
    report = examine(local)
    assert report.exit_code == 0, report.text
    assert report.names("failed", "unknown") == []
    assert "credentials" not in report.checks
    assert labelled(engine, local.name) == []
