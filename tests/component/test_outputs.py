"""What ranks write in the project's folder is kept as checkpoints are, and put back at its place."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import load_manifests
from hvdcloud.checkpoints.pull import pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles, unverified
from hvdcloud.node import paths
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run import prepare
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.runs.reports import UploadReport
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.open import open_bucket
from tests.support.nodes import code_archive, entry

CLUSTER = "digits"
FIRST, SECOND, THIRD = (f"20261120-10150{number}-abc123" for number in range(3))
CODE = {"train.py": b"import horovod", "conf/lr.txt": b"0.1"}


class Project:
    """A node, and a project that a laptop sends to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket: Bucket = open_bucket(f"file://{folder}/bucket")
        self._folder, self._monkeypatch = folder, monkeypatch
        self.on(0)

    def on(self, node: int) -> Project:
        """What follows happens on this node."""
        self._node = node
        self._monkeypatch.setenv(paths.ROOT_VARIABLE, str(self._folder / f"node-{node}"))
        return self

    def prepare(self, run: str, *, resume: str | None = None, code: Mapping[str, bytes] = CODE, **more: Any) -> None:
        """Make the node ready for a run, as `hvdcloud run` has it done."""
        files = [entry(path, text) for path, text in code.items()]
        header = {
            "run": run,
            "cluster": CLUSTER,
            "node": self._node,
            "name": f"n{self._node}",
            "slots": 1,
            "bucket": self.bucket.url,
            "keep_every": 60.0,
            "command": ["true"],
            "env": {},
            "resume": resume,
            "files": files,
            "workspace_bytes": 1000,
            **more,
        }
        wanted = prepare.code(header)["want"]
        archive = code_archive(code, [files[index]["path"] for index in wanted])
        prepare.main(header, io.BytesIO(archive))

    def write(self, *names: str, text: str = "") -> None:
        for name in names:
            path = paths.workspace() / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text or name)

    def finish(self, run: str) -> UploadReport:
        """The ranks of a run have ended on this node."""
        return UploadLoop(Spec.load(run)).finish()

    def kept(self, run: str) -> list[str]:
        manifests = load_manifests(self.bucket, cluster=CLUSTER, run=run)
        return sorted(entry.name for manifest in manifests for entry in manifest.files)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def workspace() -> list[str]:
    return sorted(str(path.relative_to(paths.workspace())) for path in paths.workspace().rglob("*") if path.is_file())


def test_what_ranks_write_beside_the_script_comes_to_the_laptop_verified(project: Project, tmp_path: Path) -> None:
    project.prepare(FIRST)
    project.write("checkpoint-1.h5", "logs/events.out", "conf/lr.txt", ".gitignore", "out/deep/model.bin")
    (paths.workspace() / "last.h5").symlink_to("checkpoint-1.h5")
    (paths.checkpoints_dir(FIRST) / "own.pt").write_text("own")
    report = project.finish(FIRST)
    outputs = [".gitignore", "checkpoint-1.h5", "conf/lr.txt", "last.h5", "logs/events.out", "out/deep/model.bin"]
    assert project.kept(FIRST) == ["own.pt", *(f"workspace/{name}" for name in outputs)]
    assert (report.complete, report.files, report.others) == (True, 7, 3)
    verified_files = VerifiedFiles(tmp_path / "verified.json")
    waiting = unverified(project.bucket, cluster=CLUSTER, run=FIRST, verified_files=verified_files)
    assert len(waiting) == 7, "`down` asks for each"
    pulled = pull(project.bucket, cluster=CLUSTER, run=FIRST, target=tmp_path / "here", verified_files=verified_files)
    assert (pulled.files, pulled.others) == (7, 3)
    assert (tmp_path / "here" / FIRST / "workspace/out/deep/model.bin").read_text() == "out/deep/model.bin"
    assert not unverified(project.bucket, cluster=CLUSTER, run=FIRST, verified_files=verified_files)


def test_code_and_caches_are_no_outputs(project: Project) -> None:
    project.write("before.pt")
    project.prepare(FIRST)
    project.write("__pycache__/a.pyc", "x.pyc", ".git/objects/a", ".ipynb_checkpoints/a.ipynb", ".cache/pip/a")
    project.write("lib.egg-info/PKG-INFO", "dist/lib.whl", ".mypy_cache/a", ".hvdcloud-staging/file")
    assert project.finish(FIRST) == UploadReport(complete=True, left_out=[], pending=[], errors=[], skipped=[])


def test_a_downloaded_data_set_is_named_and_holds_nothing_up_while_models_and_logs_are_kept(project: Project) -> None:
    project.prepare(FIRST)
    for number in range(20):
        project.write(f"data/train/{number}.png", text="x" * 90)
    project.write("archive.zip", "big/model-1.pt", text="x" * 2000)
    project.write("logs/events", "result.json", text="x" * 100)
    said: list[str] = []
    loop = UploadLoop(Spec.load(FIRST), say_left_out=said.extend)
    loop.flush_now()
    loop.flush_now()
    assert said == ["archive.zip", "data/"], "once"
    report = loop.finish()
    assert (report.complete, report.left_out) == (True, ["archive.zip", "data/"])
    assert project.kept(FIRST) == [f"workspace/{name}" for name in ("big/model-1.pt", "logs/events", "result.json")]


@pytest.mark.parametrize("node", [0, 1], ids=["on the same node", "on another one"])
def test_a_run_that_continues_finds_them_at_their_places(project: Project, node: int) -> None:
    project.prepare(FIRST)
    project.write("checkpoint-1.h5", "logs/events")
    project.write("conf/lr.txt", text="the ranks' own")
    project.finish(FIRST)
    project.on(node).prepare(SECOND, resume=FIRST)
    assert workspace() == ["checkpoint-1.h5", "conf/lr.txt", "logs/events", "train.py"]
    assert (paths.workspace() / "conf/lr.txt").read_text() == "0.1", "the laptop's files are as the laptop has them"
    project.write("checkpoint-2.h5")
    project.finish(SECOND)
    assert project.kept(SECOND) == [("@node-1/" if node else "") + "workspace/checkpoint-2.h5"]
    project.prepare(THIRD, resume=SECOND)
    assert workspace() == ["checkpoint-1.h5", "checkpoint-2.h5", "conf/lr.txt", "logs/events", "train.py"]


def test_what_a_killed_node_program_had_not_uploaded_survives_the_next_run(project: Project) -> None:
    project.prepare(FIRST)
    project.write("model.pt", text="first")
    project.write("train.py", text="changed by a rank")
    # The agent died: nothing of this run is in the bucket when the next one begins, and writes the same file.
    project.prepare(SECOND)
    assert workspace() == ["conf/lr.txt", "train.py"]
    project.write("model.pt", text="second")
    assert project.finish(SECOND).complete
    assert project.finish(FIRST).complete
    for run, text in ((FIRST, b"first"), (SECOND, b"second")):
        assert project.bucket.read(f"{CLUSTER}/{run}/workspace/model.pt") == text
    assert project.bucket.read(f"{CLUSTER}/{FIRST}/workspace/train.py") == b"changed by a rank"
