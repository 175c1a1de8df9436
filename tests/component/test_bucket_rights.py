"""Nodes with exactly the rights that `hvdcloud setup` gives them: all works, and no checkpoint can be destroyed."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google.auth
import pytest

from hvdcloud.checkpoints.manifest import (
    Entry,
    Manifest,
    log_name,
    manifest_name,
    read_manifest,
    run_prefix,
    samples_name,
    state_name,
    to_json,
)
from hvdcloud.checkpoints.pull import pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles, unverified
from hvdcloud.errors import CredentialsError, HvdcloudError
from hvdcloud.node import paths
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads import archive
from hvdcloud.node.uploads.restore import gather, restore
from hvdcloud.node.uploads.uploader import SMALL, Uploader
from hvdcloud.providers.gce.ops.node_rights import RECORDS
from hvdcloud.runs.state import RunState
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.open import open_bucket
from tests.standins.google_account import service_account
from tests.standins.storage import StorageServer, running_server
from tests.standins.storage.iam import Iam
from tests.support.harness import DEADLINE
from tests.support.manifests import entry_of

CLUSTER, RUN, NEXT = "digits", "20261120-101500-abc123", "20261121-101500-abc123"
PREFIX = run_prefix(CLUSTER, RUN)
LAPTOP, NODE = "user:ann@example.com", "serviceAccount:hvdcloud@lab.iam.gserviceaccount.com"
BINDINGS: Sequence[dict[str, Any]] = [
    {"role": "roles/storage.objectUser", "members": [LAPTOP]},
    {"role": "roles/storage.objectCreator", "members": [NODE]},
    {"role": "roles/storage.objectViewer", "members": [NODE]},
    {"role": "roles/storage.objectUser", "members": [NODE], "condition": {"expression": RECORDS}},
]


class Place:
    """A bucket, its owner at a laptop, and a node."""

    def __init__(self, server: StorageServer, node: Bucket, folder: Path) -> None:
        self.server = server
        self.node = node
        self.laptop = open_bucket("gs://bucket/runs", endpoint=server.url, retry_seconds=5)
        self.folder = folder
        self.pulls = 0

    def directory(self, run: str = RUN, node: int = 0) -> Path:
        path = self.folder / f"node-{node}" / run
        path.mkdir(parents=True, exist_ok=True)
        return path

    def uploader(self, run: str = RUN, node: int = 0) -> Uploader:
        directory = self.directory(run, node)
        return Uploader(self.node, cluster=CLUSTER, run=run, node=node, directory=directory, quiet_seconds=0)

    def finish(self, run: str = RUN, node: int = 0) -> Sequence[str]:
        """What of this node is in the bucket now; everything it has."""
        up = self.uploader(run, node)
        report = up.finish(DEADLINE)
        assert (report.complete, report.pending, report.errors) == (True, [], [])
        return sorted(up.uploaded)

    def entries(self, run: str = RUN, node: int = 0) -> dict[str, Entry]:
        manifest = read_manifest(self.laptop, cluster=CLUSTER, run=run, node=node)
        assert manifest is not None
        return {entry.name: entry for entry in manifest.files}

    def pulled(self, run: str = RUN) -> dict[str, bytes]:
        """What a laptop has after a pull, by which `down` is satisfied."""
        self.pulls += 1
        verified = VerifiedFiles(self.folder / f"verified-{self.pulls}.json")
        target = self.folder / f"pulled-{self.pulls}"
        path = pull(self.laptop, cluster=CLUSTER, run=run, target=target, verified_files=verified).folder
        assert unverified(self.laptop, cluster=CLUSTER, run=run, verified_files=verified) == []
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def attack(
        self, method: str, path: str, *, query: str = "", json: Any = None, data: bytes = b""
    ) -> tuple[int, str]:
        """A request with the node's token, as a job may send it: status and message."""
        import requests

        answer = requests.request(
            method,
            f"{self.server.url}/{path}?{query}".rstrip("?"),
            headers={"Authorization": "Bearer node-token"},
            json=json,
            data=data or None,
            timeout=300,
        )
        return answer.status_code, answer.json()["error"]["message"] if answer.status_code >= 400 else ""


@pytest.fixture(params=["403", "412"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Google may answer either where a name is taken (tests/standins/storage/iam.py)."""
    # Google's library sends no credentials of a laptop to another endpoint than Google's.
    members = {"node-token": NODE, "": LAPTOP}
    iam = Iam(members.__getitem__, BINDINGS, conditions_first=request.param == "412")
    with (
        running_server(tmp_path / "server", iam=iam, keep_generations=True) as server,
        service_account("node-token") as account,
    ):
        account.write(tmp_path / "key.json")
        scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
        credentials, _ = google.auth.load_credentials_from_file(str(tmp_path / "key.json"), scopes=scopes)
        node = open_bucket("gs://bucket/runs", endpoint=server.url, credentials=credentials, retry_seconds=5)
        yield Place(server, node, tmp_path)
        assert set(server.tokens) <= {"", "node-token"}


def test_a_job_can_neither_delete_nor_replace_a_checkpoint_with_its_node_s_token(place: Place) -> None:
    (place.directory() / "epoch-1.pt").write_bytes(b"weights")
    place.finish()
    name = "runs/digits/20261120-101500-abc123/epoch-1.pt"
    one = f"storage/v1/b/bucket/o/{quote(name, safe='')}"
    entry = place.entries()["epoch-1.pt"]
    denied = (
        "hvdcloud@lab.iam.gserviceaccount.com does not have storage.objects.delete access to the Google Cloud Storage "
        "object. Permission 'storage.objects.delete' denied on resource (or it may not exist)."
    )
    upload = "upload/storage/v1/b/bucket/o"
    assert place.attack("DELETE", one) == (403, denied)
    assert place.attack("DELETE", one, query=f"generation={entry.generation}") == (403, denied)
    for query in ("", f"&ifGenerationMatch={entry.generation}"):
        quoted = f"uploadType=media&name={quote(name, safe='')}{query}"
        assert place.attack("POST", upload, query=quoted, data=b"junk") == (403, denied)
        started = place.attack("POST", upload, query=f"uploadType=resumable{query}", json={"name": name})
        assert started == (403, denied)
    sources = {"sourceObjects": [{"name": name}, {"name": name}]}
    assert place.attack("POST", f"{one}/compose", json=sources) == (403, denied)
    assert place.attack("PATCH", one, json={"metadata": {"x": "y"}})[0] == 403
    assert place.pulled() == {"epoch-1.pt": b"weights"}


@pytest.mark.parametrize("size", [10, SMALL, 9 << 20], ids=["small", "1 MiB", "resumable"])
def test_a_checkpoint_that_is_written_again_is_another_object_and_the_newest_is_pulled(place: Place, size: int) -> None:
    path = place.directory() / "latest.pt"
    up = place.uploader()
    versions = [bytes([number]) * size for number in range(3)]
    for data in versions:
        path.write_bytes(data)
        assert not up.scan(final=True).errors
    assert place.finish() == []
    newest = place.entries()["latest.pt"]
    assert newest.object == f"latest.pt@{newest.version}"
    assert place.pulled() == {"latest.pt": versions[-1]}
    objects = [info.name for info in place.laptop.list(f"{PREFIX}latest.pt")]
    assert sorted(map(place.laptop.read, objects)) == versions
    assert f"{PREFIX}latest.pt" in objects


def test_another_agent_of_the_same_node_continues(place: Place) -> None:
    """After a restart, or on the machine that replaced a lost one."""
    path = place.directory() / "latest.pt"
    path.write_bytes(b"one")
    place.finish()
    path.write_bytes(b"two!")
    assert place.finish() == ["latest.pt"]
    assert place.finish() == []
    assert place.pulled() == {"latest.pt": b"two!"}


def test_a_run_is_resumed_and_gathered_from_what_was_written_again(place: Place) -> None:
    for data in (b"one", b"two!"):
        (place.directory() / "latest.pt").write_bytes(data)
        place.finish()
    assert restore(place.node, cluster=CLUSTER, run_from=RUN, directory=place.directory(NEXT)) == 1
    path = place.directory(NEXT) / "latest.pt"
    assert path.read_bytes() == b"two!"
    assert place.finish(NEXT) == [], "what was restored is not sent again"
    for data in (b"three", b"four"):
        path.write_bytes(data)
        os.utime(path, (time.time() + len(data), time.time() + len(data)))
        assert place.finish(NEXT) == ["latest.pt"]
    other = place.directory(NEXT, node=1)
    assert gather(place.node, cluster=CLUSTER, run=NEXT, directory=other) == 1
    assert (other / "latest.pt").read_bytes() == b"four"


@pytest.mark.parametrize("size", [10, 9 << 20], ids=["small", "resumable"])
@pytest.mark.parametrize("version", ["first", "second"])
def test_an_upload_whose_answer_was_lost_is_not_taken_for_another_s(place: Place, size: int, version: str) -> None:
    path = place.directory() / "latest.pt"
    up = place.uploader()
    if version == "second":
        path.write_bytes(b"first")
        up.scan(final=True)
    path.write_bytes(b"x" * size)
    place.server.fault(path="/upload/", method="PUT" if size > SMALL else "POST", skip=1, action={"cut": "effect"})
    report = up.finish(DEADLINE)
    assert (report.complete, report.errors) == (True, [])
    assert place.pulled() == {"latest.pt": b"x" * size}
    objects = [info.name for info in place.laptop.list(f"{PREFIX}latest.pt")]
    assert len(objects) == (1 if version == "first" else 2)


def test_names_that_a_job_has_taken_first_keep_no_checkpoint_out(place: Place) -> None:
    data = [b"one", b"two"]
    foreseen = crc32c_of_bytes(data[1])
    for name in ("latest.pt", f"latest.pt@{base64.b64decode(foreseen).hex()}"):
        place.node.write(PREFIX + name, b"bad", if_generation=0)
    for each in data:
        (place.directory() / "latest.pt").write_bytes(each)
        assert place.finish() == ["latest.pt"]
        assert place.pulled() == {"latest.pt": each}
    assert place.laptop.read(f"{PREFIX}latest.pt") == b"bad", "it was not replaced either"


def test_nodes_that_may_replace_checkpoints_do_not(place: Place) -> None:
    """Nodes of the local provider have the user's own rights, and an account that was made by hand may have any."""
    place.laptop.write(f"{PREFIX}latest.pt", b"of another")
    (place.directory() / "latest.pt").write_bytes(b"mine")
    up = Uploader(place.laptop, cluster=CLUSTER, run=RUN, node=0, directory=place.directory(), quiet_seconds=0)
    assert up.finish(DEADLINE).complete
    assert place.laptop.read(f"{PREFIX}latest.pt") == b"of another"
    assert place.pulled() == {"latest.pt": b"mine"}


def test_a_version_that_was_announced_and_done_is_found_again(place: Place) -> None:
    """The agent was killed after the object and before the manifest, and the file has been deleted since."""
    done = place.node.write(f"{PREFIX}latest.pt@0badcafe", b"new", if_generation=0)
    place.node.write(f"{PREFIX}latest.pt", b"older", if_generation=0)
    announced = [entry_of(name, b"new", version="0badcafe") for name in ("latest.pt", "never.pt")]
    before = Manifest(cluster=CLUSTER, run=RUN, node=0, complete=False, files=[], uploading=announced)
    place.node.write(manifest_name(CLUSTER, RUN, 0), to_json(before))
    place.finish()
    assert {name: each.generation for name, each in place.entries().items()} == {"latest.pt": done.generation}
    assert place.pulled() == {"latest.pt": b"new"}


def test_what_is_known_of_a_run_is_rewritten(place: Place) -> None:
    for name in (log_name(CLUSTER, RUN), state_name(CLUSTER, RUN), samples_name(CLUSTER, RUN, 3)):
        for data in (b"1", b"22"):
            place.node.write(name, data)
        assert place.laptop.read(name) == b"22"
    # What builds read and write is not the nodes' to replace.
    place.laptop.write(".hvdcloud/builds/source-0.tar.gz", b"source")
    with pytest.raises(CredentialsError, match=r"does not have storage\.objects\.delete access"):
        place.node.write(".hvdcloud/builds/source-0.tar.gz", b"evil")


def test_two_agents_of_one_node_lose_nothing(place: Place) -> None:
    path = place.directory() / "latest.pt"
    path.write_bytes(b"1")
    one, two = place.uploader(), place.uploader()
    for up in (one, two):
        assert not up.scan(final=True).errors
    path.write_bytes(b"22")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda up: up.finish(DEADLINE), (one, two)))
    place.finish()
    assert place.pulled() == {"latest.pt": b"22"}


def test_a_run_whose_records_are_kept_twice_has_its_last_state(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may replace a state, and no stacks."""
    monkeypatch.setenv(paths.ROOT_VARIABLE, str(place.folder / "root"))
    monkeypatch.setattr(Spec, "open_bucket", lambda _: place.node)
    known = {"run": RUN, "cluster": CLUSTER, "node": 0, "name": "digits-0", "bucket": place.node.url, "keep_every": 60}
    Spec.from_mapping({**known, "slots": 1, "cores": 1, "command": ["true"]}).save()
    state.log_file(RUN).write_bytes(b"[0] trains\n")
    state.write_stacks(RUN, ())
    state.write(RunState(run=RUN, state="done", result="failed", reason="first"))
    archive.keep(RUN)
    state.write(RunState(run=RUN, state="done", result="failed", reason="second"))
    with pytest.raises(HvdcloudError):
        archive.keep(RUN)
    assert json.loads(place.laptop.read(state_name(CLUSTER, RUN)))["reason"] == "second"
