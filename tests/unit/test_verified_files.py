"""The ledger remembers what was verified; even when damaged, it never says more than is true."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hvdcloud.checkpoints.verified_files import Verified, VerifiedFiles
from hvdcloud.errors import CheckpointError

ENTRY = Verified(cluster="c", run="r", name="x", crc32c="AAAAAA==", size=0, path="/somewhere/x", mtime_ns=5)


def test_what_was_saved_is_there_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.json"
    verified_files = VerifiedFiles(path)
    verified_files.add(ENTRY)
    assert verified_files.get(cluster="c", run="r", name="x") == ENTRY
    assert not path.exists()
    verified_files.save()
    assert VerifiedFiles(path).get(cluster="c", run="r", name="x") == ENTRY
    assert VerifiedFiles(path).get(cluster="c", run="r", name="y") is None
    assert [file.name for file in path.parent.iterdir()] == ["ledger.json"]


def test_two_processes_do_not_undo_each_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledgers = [VerifiedFiles(path) for _ in range(8)]

    def work(number: int) -> None:
        for step in range(10):
            ledgers[number].add(replace(ENTRY, name=f"{number}-{step}"))
            ledgers[number].save()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    after = VerifiedFiles(path)
    assert all(after.get(cluster="c", run="r", name=f"{n}-{s}") for n in range(8) for s in range(10))


def test_a_ledger_that_can_not_be_written_is_an_error_and_forgets_nothing(tmp_path: Path) -> None:
    verified_files = VerifiedFiles(tmp_path / "state" / "ledger.json")
    verified_files.add(ENTRY)
    (tmp_path / "state").write_text("a file in place of the folder")
    with pytest.raises(CheckpointError, match=r"writing .*ledger\.json"):
        verified_files.save()
    (tmp_path / "state").unlink()
    verified_files.save()
    assert VerifiedFiles(tmp_path / "state" / "ledger.json").get(cluster="c", run="r", name="x") == ENTRY


def test_a_ledger_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").mkdir()
    with pytest.raises(CheckpointError, match=r"reading .*ledger\.json failed: Is a directory"):
        VerifiedFiles(tmp_path / "ledger.json")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version":9,"verified":[]}', b'{"version":1,"verified":[{}]}'])
def test_a_damaged_ledger_knows_nothing_and_heals(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "ledger.json"
    path.write_bytes(damage)
    verified_files = VerifiedFiles(path)
    assert verified_files.get(cluster="c", run="r", name="x") is None
    verified_files.add(ENTRY)
    verified_files.save()
    assert VerifiedFiles(path).get(cluster="c", run="r", name="x") == ENTRY
