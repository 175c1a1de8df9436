"""The run's log: one prefix per line, with either launcher, and no line that is lost or mixed up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hvdcloud.node.run.log import Normaliser, RunLog


def normalised(*pieces: bytes) -> bytes:
    normaliser = Normaliser()
    return b"".join([normaliser.feed(piece) for piece in pieces]) + normaliser.close()


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        (b"[0]<stdout>:epoch 1\n", b"[0] epoch 1\n"),
        (b"[12]<stderr>:warning\n", b"[12] warning\n"),
        (b"[1,3]<stdout>:epoch 1\n", b"[3] epoch 1\n"),
        (b"[1,0]<stderr>:\n", b"[0] \n"),
        (b"Process 1 exit with status code 1.\n", b"[launcher] Process 1 exit with status code 1.\n"),
        (b"\n", b"[launcher] \n"),
        (b"[0] not a launcher's prefix\n", b"[launcher] [0] not a launcher's prefix\n"),
        (b"[0]<stdout>:bytes \xff\xfe\n", b"[0] bytes \xff\xfe\n"),
    ],
)
def test_both_launchers_prefixes_become_one(launcher: bytes, line: bytes) -> None:
    assert normalised(launcher) == line


def test_lines_may_arrive_in_any_pieces() -> None:
    text = b"hello\n[0]<stdout>:one\n[1,1]<stderr>:two\nbye\n[0]<stdout>:partial"
    whole = normalised(text)

    assert whole == b"[launcher] hello\n[0] one\n[1] two\n[launcher] bye\n[0] partial\n"
    for size in (1, 2, 3, 7):
        assert normalised(*(text[at : at + size] for at in range(0, len(text), size))) == whole


def test_a_last_line_without_newline_does_not_swallow_the_next_ranks_line() -> None:
    assert normalised(b"[0]<stdout>:done[1]<stdout>:also done\n") == b"[0] done\n[1] also done\n"


def test_a_long_line_that_open_mpi_tags_in_pieces_is_whole_again() -> None:
    pieces = b"[1,0]<stdout>:aaaa[1,0]<stdout>:bbbb[1,0]<stdout>:cc\n[1,1]<stdout>:x\n"

    assert normalised(pieces) == b"[0] aaaabbbbcc\n[1] x\n"


def test_a_progress_bar_keeps_its_carriage_returns() -> None:
    bar = b"[0]<stderr>: 10%\r[0]<stderr>: 20%\r[0]<stderr>: done\n"

    assert normalised(bar) == b"[0]  10%\r[0]  20%\r[0]  done\n"


def test_a_partial_line_can_be_shown_before_it_ends() -> None:
    normaliser = Normaliser()

    assert normaliser.feed(b"[0]<stdout>:password? ") == b""
    assert normaliser.flush() == b"[0] password? "
    assert normaliser.feed(b"yes\n[1]<std") == b"yes\n"
    assert normaliser.flush() == b""
    assert normaliser.feed(b"out>:hi\n") == b"[1] hi\n"


def test_a_huge_line_passes_with_flat_memory() -> None:
    normaliser = Normaliser()
    size = sum(len(normaliser.feed(b"x" * 65536)) for _ in range(160)) + len(normaliser.close())

    assert size == len(b"[launcher] ") + 160 * 65536 + 1


def test_a_hundred_thousand_lines_take_well_under_a_second() -> None:
    block = b"".join(b"[%d]<stdout>:step %d loss 0.123456 accuracy 0.98\n" % (line % 8, line) for line in range(4000))
    normaliser = Normaliser()
    started = time.process_time()

    for _ in range(25):
        normaliser.feed(block)

    assert time.process_time() - started < 1.0


def test_a_full_disk_is_remembered_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = RunLog(path)

    log.output(b"[0]<stdout>:more\n")
    log.note("and more")
    log.close()

    assert log.failure is not None
    assert log.failure.strerror == "No space left on device"


def test_our_own_lines_never_share_a_line_with_a_ranks(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")

    log.output(b"[0]<stdout>:no newline")
    log.note("node n1 was lost")
    log.output(b"[0]<stdout>:still here\n")
    log.close()

    assert (tmp_path / "log").read_bytes() == b"[0] no newline\n[hvdcloud] node n1 was lost\n[0] still here\n"
