"""`data push` and `data check` as processes, against the stand-in of Cloud Storage over HTTP."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from hvdcloud.storage.open import open_bucket
from tests.standins.storage import StorageServer, running_server
from tests.standins.storage.iam import Iam
from tests.support.harness import Project, Screen, until

UPLOAD = "/upload/storage/v1/b/bucket/o"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StorageServer]:
    with running_server(tmp_path / "server", page_size=7) as server:
        yield server


@pytest.fixture
def project(tmp_path: Path, server: StorageServer) -> Project:
    (tmp_path / "project").mkdir()
    environ = {"STORAGE_EMULATOR_HOST": server.url}
    return Project(folder=tmp_path / "project", state=tmp_path / "state", name="digits", environ=environ)


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        # An hour ago, so that their checksums are kept.
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))
    return folder


def some(count: int, size: int = 100) -> dict[str, bytes]:
    return {f"{number % 3}/{number:03d}.bin": bytes([number % 251]) * size for number in range(count)}


def stored(server: StorageServer) -> dict[str, bytes]:
    """What the bucket holds."""
    bucket = open_bucket("gs://bucket", endpoint=server.url)
    return {info.name: bucket.read(info.name) for info in bucket.list("")}


def uploads(server: StorageServer) -> list[str]:
    """Targets of what was sent and arrived."""
    return [path for method, path, status, _ in server.requests if path.startswith(UPLOAD) and status == 200]


def test_a_folder_is_sent_once_and_the_second_push_sends_nothing(project: Project, server: StorageServer) -> None:
    files = {**some(30), "large.bin": os.urandom(9 << 20), "empty": b"", "with space/ä#?.png": b"x"}
    fill(project.folder / "train", files)
    first = project.hvdcloud("data", "push", "train", "gs://bucket/sets/train")
    assert stored(server) == {f"sets/train/{name}": data for name, data in files.items()}
    lines = first.out.splitlines()
    assert lines[:2] == ["data:", "  train: gs://bucket/sets/train"]
    assert lines[-1].startswith("✓ 33 files, 9.4 MB, verified in gs://bucket/sets/train · 33 files sent in ")
    before = len(uploads(server))
    again = project.hvdcloud("data", "push", "train", "gs://bucket/sets/train", "--json").json["result"]
    assert (again["files"], again["files_sent"], again["bytes_sent"]) == (33, 0, 0)
    assert len(uploads(server)) == before
    project.configure(data={"train": "gs://bucket/sets/train"})
    assert "✓ 1 data set, all readable" in project.hvdcloud("data", "check").out


def test_only_what_has_changed_is_sent_and_nothing_is_deleted(project: Project, server: StorageServer) -> None:
    train = fill(project.folder / "train", some(12))
    project.hvdcloud("data", "push", "train", "gs://bucket/train")
    (train / "0/000.bin").write_bytes(b"y" * 100)  # as many bytes as before
    (train / "0/003.bin").write_bytes(b"longer" * 100)
    (train / "1/001.bin").unlink()
    os.utime(train / "2/002.bin")  # the same bytes, as after a copy
    ended = project.hvdcloud("data", "push", "train", "gs://bucket/train", "--json")
    result = ended.json["result"]
    assert (result["files"], result["files_sent"], result["extra"]) == (11, 2, 1)
    assert "has 1 object that train has not, which nodes get too: 1/001.bin" in ended.err
    there = stored(server)
    assert there["train/0/000.bin"] == b"y" * 100
    assert "train/1/001.bin" in there
    assert not [path for method, path, *_ in server.requests if method == "DELETE"]


def test_after_a_kill_nothing_is_sent_twice(project: Project, server: StorageServer) -> None:
    files = some(60)
    fill(project.folder / "train", files)
    server.fault(path=UPLOAD, action={"delay": 0.2}, times=1000)
    with project.started("data", "push", "train", "gs://bucket/train") as process:
        until(lambda: len(uploads(server)) >= 15, seconds=60, what="some files in the bucket")
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    server.faults.clear()
    # What the killed process had sent in full may still be on its way into the store.
    done = settled(server)
    assert 15 <= done < 60
    result = project.hvdcloud("data", "push", "train", "gs://bucket/train", "--json").json["result"]
    assert (result["files"], result["files_sent"]) == (60, 60 - done)
    assert len(uploads(server)) == 60
    assert stored(server) == {f"train/{name}": data for name, data in files.items()}


def settled(server: StorageServer) -> int:
    """How many objects there are once no request is under way."""
    last, since = -1, time.monotonic()

    def same() -> bool:
        nonlocal last, since
        if (now := len(server.store.bucket("bucket").live)) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since >= 1.0

    until(same, seconds=30, what="the last request to end")
    return last


def test_it_ends_calmly_on_ctrl_c_and_says_how_to_continue(project: Project, server: StorageServer) -> None:
    fill(project.folder / "train", some(60))
    server.fault(path=UPLOAD, action={"delay": 0.2}, times=1000)
    with project.started("data", "push", "train", "gs://bucket/train") as process:
        screen = Screen(process)
        until(lambda: len(uploads(server)) >= 15, seconds=60, what="some files in the bucket")
        process.send_signal(signal.SIGINT)
        screen.end(within=60)
        assert screen.exit_code == 130
        assert "the push is stopped, " in screen.text
        assert "files sent; the same command sends the rest: hvdcloud data push train gs://bucket/train" in screen.text
        assert "Traceback" not in screen.text


def test_every_second_request_may_break(project: Project, server: StorageServer) -> None:
    files = {**some(20), "large.bin": os.urandom(9 << 20)}
    fill(project.folder / "train", files)
    actions = [{"status": 503}, {"cut": "effect"}, {"cut": "request", "after": 10}, {"status": 429}]
    # Each fault happens once, after one more request that works.
    for number in range(24):
        server.fault(path="/storage/v1/b/bucket/o", action=actions[number % 4], skip=1)
    result = project.hvdcloud("data", "push", "train", "gs://bucket/train", "--json").json["result"]
    assert (result["files"], result["failed"]) == (21, [])
    assert sum(fault["hits"] for fault in server.faults.plain()) == 24
    assert stored(server) == {f"train/{name}": data for name, data in files.items()}


def test_without_the_right_to_write_it_ends_at_once(project: Project, server: StorageServer) -> None:
    fill(project.folder / "train", some(200))
    reader = [{"role": "roles/storage.objectViewer", "members": ["user:ann@example.com"]}]
    server.iam = Iam(lambda _: "user:ann@example.com", reader)
    ended = project.hvdcloud("data", "push", "train", "gs://bucket/train", expect=3)
    assert "storage.objects.create" in ended.err
    assert "Traceback" not in ended.err
    assert len([path for _, path, status, _ in server.requests if status == 403]) < 100


def test_where_an_access_token_is_refused_and_there_is_no_other_it_is_an_error_of_credentials(
    project: Project, server: StorageServer
) -> None:
    # Google's library says of a login that cannot be renewed that a value is wrong.
    server.authorize = lambda token: False
    fill(project.folder / "train", some(2))
    for command in (["push", "train", "gs://bucket/sets"], ["check", "train", "gs://bucket/sets"]):
        refused = project.hvdcloud("data", *command, expect=3)
        assert "gs://bucket/sets was refused" in refused.err
        assert "gcloud auth application-default login" in refused.err


def test_a_file_that_changes_meanwhile_is_named_and_the_rest_is_sent(project: Project, server: StorageServer) -> None:
    train = fill(project.folder / "train", {**some(10), "zz.log": b"a" * 50})
    server.fault(path=UPLOAD, action={"delay": 0.5}, times=10)
    ended = threading.Event()

    def log() -> None:
        with (train / "zz.log").open("ab") as file:
            while not ended.wait(0.01):
                file.write(b"a line\n")
                file.flush()

    writer = threading.Thread(target=log)
    writer.start()
    try:
        with project.started("data", "push", "train", "gs://bucket/train", "--json") as process:
            out, _ = process.communicate(timeout=120)
    finally:
        ended.set()
        writer.join()
    document = json.loads(out[out.index("{\n") :])
    assert document["exit_code"] == 9, out
    assert "zz.log changed" in document["error"]["details"]
    assert document["error"]["hint"] == "hvdcloud data push train gs://bucket/train"
    assert (document["result"]["files"], len(document["result"]["failed"])) == (10, 1)
    assert project.hvdcloud("data", "push", "train", "gs://bucket/train", "--json").json["result"]["files"] == 11


def test_what_cannot_be_an_object_is_named_and_the_rest_is_sent(project: Project, server: StorageServer) -> None:
    train = fill(project.folder / "train", {"a": b"1", "line\nbreak": b"2", "kaggle.json": b"{}"})
    (train / "link").symlink_to("a")
    os.mkfifo(train / "fifo")
    ended = project.hvdcloud("data", "push", "train", "gs://bucket/train", expect=9)
    assert "not sent, since it looks like credentials: kaggle.json; --private sends it" in ended.err
    assert "not sent, since it is a link: link; cp -rL makes a folder without links" in ended.err
    assert "not sent, since it is neither a file nor a folder: fifo" in ended.err
    assert r"'line\nbreak' no file below a folder can have this name" in ended.err
    assert stored(server) == {"train/a": b"1"}
    (train / "line\nbreak").unlink()
    project.hvdcloud("data", "push", "train", "gs://bucket/train", "--private")
    assert stored(server) == {"train/a": b"1", "train/kaggle.json": b"{}"}


def test_a_folder_in_the_place_of_an_object_is_refused_before_anything_is_sent(
    project: Project, server: StorageServer
) -> None:
    fill(project.folder / "one", {"a": b"1"})
    fill(project.folder / "two", {"a/b": b"1", "c": b"2"})
    project.hvdcloud("data", "push", "one", "gs://bucket/x")
    assert (
        "a file and a folder of one name: a" in project.hvdcloud("data", "push", "two", "gs://bucket/x", expect=2).err
    )
    assert stored(server) == {"x/a": b"1"}


@pytest.mark.parametrize(
    ("folder", "url", "words"),
    [
        ("nothing", "gs://bucket/x", "nothing does not exist"),
        ("empty", "gs://bucket/x", "empty holds no file"),
        ("full/a", "gs://bucket/x", "full/a is not a folder"),
        ("full", "gs://nowhere/x", "gs://nowhere does not exist"),
        ("full", "s3://bucket/x", "neither gs://BUCKET"),
        ("full", "gs://bucket/../x", "neither gs://BUCKET"),
    ],
)
def test_what_is_wrong_with_the_command_is_said(project: Project, folder: str, url: str, words: str) -> None:
    (project.folder / "empty").mkdir()
    fill(project.folder / "full", {"a": b"1"})
    ended = project.hvdcloud("data", "push", folder, url, expect=2)
    assert words in ended.err
    assert "checkpoints" not in ended.err


def test_a_folder_as_the_bucket_is_read_once_only(project: Project) -> None:
    files = some(20)
    fill(project.folder / "train", files)
    target = project.folder / "copy"
    project.hvdcloud("data", "push", "train", target.as_uri())
    assert {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*.bin")} == files
    result = project.hvdcloud("data", "push", "train", target.as_uri(), "--json").json["result"]
    assert (result["files"], result["files_sent"]) == (20, 0)
    (target / "0/000.bin").write_bytes(b"z" * 100)
    assert project.hvdcloud("data", "push", "train", target.as_uri(), "--json").json["result"]["files_sent"] == 1
    assert (
        "in the other" in project.hvdcloud("data", "push", "train", (project.folder / "train/x").as_uri(), expect=2).err
    )


@pytest.mark.parametrize("place", ["gs://bucket/my # sets: 1", "file"])
def test_the_lines_that_it_prints_are_those_of_a_configuration(project: Project, place: str) -> None:
    fill(project.folder / "train", {"a": b"1"})
    url = (project.folder / "my # copy: 50 %").as_uri() if place == "file" else place
    out = project.hvdcloud("data", "push", "train", url).out
    project.write("hvdcloud.yaml", "name: digits\n" + "\n".join(out.splitlines()[:2]) + "\n")
    assert "✓ 1 data set, all readable" in project.hvdcloud("data", "check").out


def test_check_tells_sizes_shares_and_what_is_wrong(project: Project, server: StorageServer) -> None:
    fill(project.folder / "train", {"a": b"1" * 5000, "b": b"2", "c": b"3"})
    project.hvdcloud("data", "push", "train", "gs://bucket/train")
    bad = {"x": b"1", "x/y": b"2", "A": b"3", "a": b"4"}
    for name, data in bad.items():
        where = f"{server.url}{UPLOAD}?uploadType=media&name={quote('bad/' + name, safe='')}"
        assert requests.post(where, data=data, timeout=10).status_code == 200
    project.configure(
        nodes=2,
        data={
            "train": "gs://bucket/train",
            "shards": {"source": "gs://bucket/train", "per_node": "shard"},
            "bad": "gs://bucket/bad",
            "none": "gs://bucket/none",
            "val": (project.folder / "train").as_uri(),
        },
    )
    ended = project.hvdcloud("data", "check", "--json", expect=2)
    sets = {each["name"]: each for each in ended.json["result"]["sets"]}
    assert (sets["train"]["files"], sets["train"]["bytes"], sets["train"]["node_bytes"]) == (3, 5002, 4 * 4096)
    assert sets["shards"]["node_bytes"] == 3 * 4096
    assert sets["val"]["node_bytes"] == 0
    assert sets["bad"]["problems"] == ["'x' is a file and a folder"]
    assert len(sets["bad"]["warnings"]) == 1
    assert sets["none"]["error"] == "gs://bucket/none holds no objects"
    assert project.hvdcloud("data", "check", "train").out.startswith("DATA SET  SOURCE")
    assert "has no data set 'other'" in project.hvdcloud("data", "check", "other", expect=2).err


def test_check_without_the_right_to_read_is_an_error_of_that_set(project: Project, server: StorageServer) -> None:
    fill(project.folder / "train", {"a": b"1"})
    project.hvdcloud("data", "push", "train", "gs://bucket/train")
    server.iam = Iam(lambda _: "user:ann@example.com", [])
    project.configure(data={"train": "gs://bucket/train"})
    ended = project.hvdcloud("data", "check", expect=3)
    assert "FAILED" in ended.out
    assert "was refused" in ended.out


def test_check_compares_a_folder_with_a_bucket(project: Project) -> None:
    train = fill(project.folder / "train", {**some(6), ".env": b"TOKEN=x"})
    project.hvdcloud("data", "push", "train", "gs://bucket/train")
    same = project.hvdcloud("data", "check", "train", "gs://bucket/train").out
    assert "hold the same · 6 files" in same
    assert "not sent without --private, since it looks like credentials: .env" in same
    (train / "0/000.bin").write_bytes(b"y" * 100)
    (train / "1/001.bin").unlink()
    (train / "new").write_bytes(b"")
    result = project.hvdcloud("data", "check", "train", "gs://bucket/train", "--json", expect=9).json["result"]
    assert (result["missing"], result["different"], result["extra"]) == (["new"], ["0/000.bin"], ["1/001.bin"])
    assert "next: hvdcloud data push" in project.hvdcloud("data", "check", "train", "gs://bucket/train", expect=9).out
