"""Every way in which a pull can be interrupted, misled or lied to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import Entry, Manifest, manifest_name, object_name, run_prefix, to_json
from hvdcloud.checkpoints.pull import PulledRun, PullError, pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.errors import CapacityError, CheckpointError, ExitCode
from hvdcloud.storage.base import Bucket, CorruptObjectError, Download, ObjectMissingError
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.open import open_bucket
from tests.support.harness import looking, sizes
from tests.support.manifests import entry_of

CLUSTER, RUN = "digits", "20261120-101500-abc123"
PREFIX = run_prefix(CLUSTER, RUN)


class Workers:
    """A bucket with one run in it, and a disk to pull it to."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "bucket"
        self.bucket: Bucket = open_bucket(self.folder.as_uri())
        self.target = root / "pulled"
        self.ledger_path = root / "state" / "ledger.json"
        self.entries: dict[int, dict[str, Entry]] = {}

    def put(self, file: str, data: bytes, *, node: int = 0) -> Entry:
        name = object_name(file, node=node)
        info = self.bucket.write(PREFIX + name, data)
        entry = entry_of(name, data, generation=info.generation, modified=1.5e9)
        self.entries.setdefault(node, {})[name] = entry
        return entry

    def publish(self, *, node: int = 0, complete: bool = True, uploading: tuple[Entry, ...] = ()) -> None:
        entries = list(self.entries.get(node, {}).values())
        manifest = Manifest(cluster=CLUSTER, run=RUN, node=node, complete=complete, files=entries, uploading=uploading)
        self.bucket.write(manifest_name(CLUSTER, RUN, node), to_json(manifest))

    def pull(self, bucket: Bucket | None = None, **options: Any) -> PulledRun:
        record = VerifiedFiles(self.ledger_path)
        return pull(
            bucket or self.bucket, cluster=CLUSTER, run=RUN, target=self.target, verified_files=record, **options
        )

    def path(self, name: str) -> Path:
        return self.target / RUN / name


@pytest.fixture
def world(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


def test_all_files_of_all_nodes_arrive_with_their_times(world: Workers) -> None:
    world.put("a.pt", b"a")
    world.put("deep/er/b.pt", b"bb")
    world.put("a.pt", b"other", node=1)
    world.publish()
    world.publish(node=1)
    result = world.pull()
    assert (result.files, result.fetched, result.bytes_fetched) == (3, 3, 8)
    assert result.complete
    assert result.folder == world.target / RUN
    assert world.path("a.pt").read_bytes() == b"a"
    assert world.path("deep/er/b.pt").read_bytes() == b"bb"
    assert world.path("@node-1/a.pt").read_bytes() == b"other"
    assert world.path("a.pt").stat().st_mtime == 1.5e9


def test_a_second_pull_fetches_nothing_and_a_third_only_what_is_new(world: Workers) -> None:
    world.put("a", b"a")
    world.publish(complete=False)
    assert not world.pull().complete
    again = world.pull()
    assert (again.files, again.fetched, again.bytes_fetched) == (1, 0, 0)
    world.put("b", b"bb")
    world.publish()
    third = world.pull()
    assert (third.files, third.fetched, third.bytes_fetched, third.complete) == (2, 1, 2, True)


def test_a_pull_is_complete_when_every_node_has_finished(world: Workers) -> None:
    world.put("a", b"a")
    world.publish()
    world.publish(node=1, complete=False)
    assert not world.pull().complete
    world.publish(node=1)
    assert world.pull().complete


def test_of_what_is_on_disk_only_the_remains_of_killed_downloads_are_removed(world: Workers) -> None:
    world.put("a", b"a")
    world.publish()
    for name in (".hidden", "deep/.hidden", "named.hvdcloud-part", ".1-1.hvdcloud-part", "deep/.1-2.hvdcloud-part"):
        world.path(name).parent.mkdir(parents=True, exist_ok=True)
        world.path(name).write_bytes(b"mine")
    world.pull()
    left = sorted(str(path.relative_to(world.path(""))) for path in world.path("").rglob("*") if path.is_file())
    assert left == [".hidden", "a", "deep/.hidden", "named.hvdcloud-part"]


def test_what_is_on_disk_is_verified_and_not_fetched_without_a_ledger(world: Workers) -> None:
    world.put("a", b"right")
    world.publish()
    world.pull()
    world.ledger_path.unlink()
    assert world.pull().fetched == 0
    world.path("a").write_bytes(b"wrong")
    assert world.pull().fetched == 1
    assert world.path("a").read_bytes() == b"right"


def test_a_corrupted_object_is_code_9_and_every_other_file_arrives(world: Workers) -> None:
    for name in ("a", "bad", "c"):
        world.put(name, b"right")
    world.publish()
    path = world.folder / PREFIX / "bad"
    status = path.stat()
    path.write_bytes(b"wrong")
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    with pytest.raises(PullError) as caught:
        world.pull()
    assert caught.value.code == ExitCode.CHECKPOINT
    assert caught.value.hint.startswith(f"hvdcloud pull {RUN}")
    assert "bad" in caught.value.message
    assert [*caught.value.failed] == ["bad"]
    assert isinstance(next(iter(caught.value.failed.values())), CorruptObjectError)
    assert caught.value.pulled.files == 2
    assert sorted(path.name for path in world.path("").iterdir()) == ["a", "c"]
    verified_files = VerifiedFiles(world.ledger_path)
    assert verified_files.get(cluster=CLUSTER, run=RUN, name="a")
    assert verified_files.get(cluster=CLUSTER, run=RUN, name="bad") is None


@pytest.mark.parametrize("happened", ["overwritten", "deleted"])
def test_an_object_that_is_not_the_nodes_any_more_is_missing(world: Workers, happened: str) -> None:
    world.put("bad", b"right")
    world.put("a", b"right")
    world.publish()
    if happened == "overwritten":
        world.bucket.write(PREFIX + "bad", b"enemy")
    else:
        (world.folder / PREFIX / "bad").unlink()
    with pytest.raises(PullError) as caught:
        world.pull()
    assert caught.value.code == ExitCode.CHECKPOINT
    assert isinstance(next(iter(caught.value.failed.values())), ObjectMissingError)
    assert not world.path("bad").exists()
    assert world.path("a").exists()


def test_an_object_replaced_after_the_manifest_was_written_is_fetched_if_it_was_announced(world: Workers) -> None:
    """The node died between the object and the manifest."""
    old = world.put("latest", b"old")
    announced = {"latest": b"new", "first": b"1st", "never": b"nev"}
    uploading = tuple(entry_of(name, data, modified=2.0) for name, data in announced.items())
    world.publish(complete=False, uploading=uploading)
    world.bucket.write(PREFIX + "latest", b"new")
    world.bucket.write(PREFIX + "first", b"1st")
    stat = world.bucket.stat(PREFIX + "latest")
    assert stat is not None
    assert stat.generation > old.generation
    result = world.pull()
    assert not result.complete
    assert world.path("latest").read_bytes() == b"new"
    assert world.path("first").read_bytes() == b"1st"
    assert not world.path("never").exists()
    again = world.pull()
    assert (again.fetched, again.files) == (0, 2)


class MovingBucket(FolderBucket):
    """A folder in which a node overwrites a file between our reading the manifest and the object."""

    def __init__(self, world: Workers) -> None:
        super().__init__(world.folder)
        self.world = world
        self.moves = 2

    def download_many(
        self, items: Sequence[Download], *, workers: int, on_done: Callable[[Download, Exception | None], None]
    ) -> None:
        if self.moves:
            self.moves -= 1
            self.world.put("latest", f"version {self.moves}".encode())
            self.world.publish()
        super().download_many(items, workers=workers, on_done=on_done)


def test_a_running_node_that_overwrites_meanwhile_is_followed(world: Workers) -> None:
    world.put("latest", b"version 2")
    world.publish()
    assert world.pull(MovingBucket(world)).files == 1
    assert world.path("latest").read_bytes() == b"version 0"


@pytest.mark.parametrize("where", ["folder", "parent", "run"])
def test_a_symbolic_link_does_not_lead_out_of_the_target(world: Workers, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    world.put("sub/sub/file", b"data")
    world.put("other", b"data")
    world.publish()
    link = {"folder": world.path("sub/sub"), "parent": world.path("sub"), "run": world.path("")}[where]
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(CheckpointError) as caught:
        world.pull()
    assert str(outside) in caught.value.message
    assert list(outside.iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_and_not_written_through(world: Workers, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"data")
    world.put("file", b"data")
    world.publish()
    world.path("file").parent.mkdir(parents=True)
    world.path("file").symlink_to(precious)
    assert world.pull().fetched == 1
    assert not world.path("file").is_symlink()
    assert precious.read_bytes() == b"data"


def test_too_little_space_is_found_out_before_anything_is_fetched(world: Workers) -> None:
    world.put("a", b"a")
    huge = world.put("huge", b"")
    with (world.folder / PREFIX / "huge").open("wb") as file:
        file.truncate(8 << 40)
    world.entries[0]["huge"] = replace(huge, size=8 << 40)
    world.publish()
    with pytest.raises(CapacityError, match=r"need 8796\.1 GB more"):
        world.pull()
    assert not world.path("a").exists()


def test_two_pulls_into_one_folder_do_not_meet(world: Workers) -> None:
    world.put("a", b"a")
    world.publish()

    def meanwhile(_done: int, _total: int) -> None:
        with pytest.raises(CheckpointError, match="another hvdcloud is pulling"):
            world.pull()

    assert world.pull(on_progress=meanwhile).files == 1


PROCESS = """
import sys
from pathlib import Path
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.open import open_bucket
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.checkpoints.pull import pull
url, cluster, run, target, ledger = sys.argv[1:]
record = VerifiedFiles(Path(ledger))
result = pull(open_bucket(url), cluster=cluster, run=run, target=Path(target), verified_files=record)
print(result.fetched, flush=True)
"""


def test_kill_9_in_the_middle_of_a_pull_and_the_next_one_continues(world: Workers) -> None:
    contents = {f"{number:03}": os.urandom(20_000) for number in range(200)}
    contents["big"] = os.urandom(80_000_000)
    for name, data in contents.items():
        world.put(name, data)
    world.publish()
    arguments = [sys.executable, "-c", PROCESS, world.bucket.url, CLUSTER, RUN, str(world.target)]
    arguments.append(str(world.ledger_path))
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < deadline, "waited 120 s for a download in progress"
        with looking(process):
            if any(size > 1 << 20 for size in sizes(world.path(""), ".*-part")):
                process.send_signal(signal.SIGKILL)
        time.sleep(0.005)
    assert process.returncode == -signal.SIGKILL, "the pull ended before it could be killed"
    process.communicate(timeout=300)
    for path in world.path("").iterdir():
        if not path.name.startswith("."):
            assert path.read_bytes() == contents[path.name], "a file under its own name is whole"
    assert not world.path("big").exists()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True)
    assert 0 < int(done.stdout) <= len(contents)
    assert {path.name for path in world.path("").iterdir()} == set(contents), "no leftover of the killed one"
    for name, data in contents.items():
        assert world.path(name).read_bytes() == data
