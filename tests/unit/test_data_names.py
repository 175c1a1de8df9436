"""What a data set's names must be, what is sent of a folder, and what a comparison finds: without a bucket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvdcloud.config.data import DataConfig
from hvdcloud.datasets.checksums import ChecksumIndex, opened_index
from hvdcloud.datasets.names import NameProblem, Problem, is_safe, problems_of, set_name
from hvdcloud.datasets.push import compare
from hvdcloud.datasets.scan import LocalFile, Signature, links_out, scan
from hvdcloud.storage.base import ObjectInfo

KEY = "-----BEGIN PRIVATE KEY-----\nabc\n"


def info(name: str, size: int = 1) -> ObjectInfo:
    return ObjectInfo(name=name, size=size, crc32c="AAAAAA==", generation=1, updated=0.0)


def file(name: str, size: int = 1) -> LocalFile:
    return LocalFile(name, Signature(size, 1, 1))


@pytest.mark.parametrize("name", ["../a", "/a", "a//b", "a/./b", "a\nb", "a\x00b", "a/" + "b" * 256, "c/" * 600 + "d"])
def test_a_name_that_leads_elsewhere_or_that_no_disk_takes_is_unsafe(name: str) -> None:
    assert not is_safe(name)
    assert list(problems_of([name])) == [NameProblem(problem=Problem.UNSAFE, names=(name,))]


def test_what_collides_is_named_once_with_both_names() -> None:
    found = list(problems_of(["A.png", "a.png", "b", "b/c", "b!", "D/e", "d/f", "plain/x"]))
    assert found == [
        NameProblem(problem=Problem.CASE, names=("A.png", "a.png")),
        NameProblem(problem=Problem.ALSO_FOLDER, names=("b",)),
        NameProblem(problem=Problem.CASE, names=("D", "d")),
    ]
    assert found[0].text.startswith("'A.png' and 'a.png' differs only by case")


def test_the_same_letter_in_two_encodings_collides() -> None:
    assert [each.problem for each in problems_of(["caf\u00e9", "cafe\u0301"])] == [Problem.CASE]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("imagenet/train", "train"),
        ("My Data (2)", "my-data-2"),
        ("2024", "data-2024"),
        ("___", "data"),
        ("x" * 80, "x" * 63),
    ],
)
def test_the_name_of_a_set_is_one_that_the_configuration_takes(given: str, name: str) -> None:
    assert set_name(given) == name
    from hvdcloud.config.model import Config

    assert Config(name="digits", data={name: DataConfig(source="gs://bucket/x")}).data


def test_a_comparison_tells_what_to_send_what_to_look_at_and_what_is_in_the_way() -> None:
    files = [file("a"), file("b", 2), file("c"), file("d/e"), file("f")]
    found = compare(files, {each.name: each for each in (info("a"), info("b"), info("d"), info("f/g"), info("z"))})
    assert [each.name for each in found.maybe] == ["a"]
    assert [each.name for each in found.send] == ["b", "c", "d/e", "f"]
    assert found.extra == ["d", "f/g", "z"]
    assert found.blocked == ["d", "f"]


def test_of_a_folder_goes_what_can_be_an_object_and_the_rest_is_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.png").write_bytes(b"x")
    (tmp_path / "a!").write_bytes(b"")
    (tmp_path / "link").symlink_to("a/b/x.png")
    (tmp_path / "out").symlink_to("/etc/hostname")
    (tmp_path / "loop").symlink_to("a", target_is_directory=True)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "new\nline").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9")).write_bytes(b"")
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("")
    found = scan(tmp_path)
    assert [each.name for each in found.files] == ["a!", "a/b/x.png"]
    assert found.bytes == 1
    reasons = {each.names[0]: each.problem for each in found.left_out}
    assert reasons == {
        "link": Problem.LINK,
        "out": Problem.LINK,
        "loop": Problem.LINK,
        "fifo": Problem.SPECIAL,
        "new\nline": Problem.UNSAFE,
        "latin-\udce9": Problem.UNSAFE,
        "key.pem": Problem.PRIVATE,
        ".ssh/config": Problem.PRIVATE,
        ".git/config": Problem.REPOSITORY,
    }
    assert list(problems_of([".git/config"])) == [NameProblem(problem=Problem.REPOSITORY, names=(".git/config",))]
    assert {each.name for each in scan(tmp_path, private=True).files} >= {"key.pem", ".ssh/config"}
    links = [each for each in found.left_out if each.problem is Problem.LINK]
    assert [each.names for each in links_out(tmp_path, links)] == [("out",)]


def test_the_prefix_counts_for_how_long_a_name_may_be(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"")
    assert len(scan(tmp_path).files) == 1
    assert [each.problem for each in scan(tmp_path, prefix="/".join(["p" * 200] * 4)).left_out] == [Problem.UNSAFE]


def test_a_checksum_is_known_as_long_as_the_file_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    old, new = Signature(3, 1, 7), Signature(3, 2, 7)
    with opened_index() as connection:
        index = ChecksumIndex(connection, "/data")
        index.put("x", old, "AAAAAA==")
        index.put("gone", old, "AAAAAA==")
        index.keep_only(["x"])
    with opened_index() as connection:
        index = ChecksumIndex(connection, "/data")
        assert (index.get("x", old), index.get("x", new), index.get("gone", old)) == ("AAAAAA==", None, None)
        assert ChecksumIndex(connection, "/other").get("x", old) is None


def test_a_damaged_index_is_made_again_and_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state" / "_data").mkdir(parents=True)
    (tmp_path / "state" / "_data" / "checksums.sqlite3").write_bytes(b"no database" * 1000)
    with opened_index() as connection:
        assert connection is not None
        ChecksumIndex(connection, "/data").put("x", Signature(3, 1, 7), "AAAAAA==")
    index = ChecksumIndex(None, "/data")
    index.put("x", Signature(3, 1, 7), "AAAAAA==")
    assert index.get("x", Signature(3, 1, 7)) == "AAAAAA=="


def test_a_file_that_was_written_this_moment_is_read_again() -> None:
    import time

    index = ChecksumIndex(None, "/data")
    index.put("x", now := Signature(3, time.time_ns(), 7), "AAAAAA==")
    assert index.get("x", now) is None
