"""The run's log: one prefix per line, with either launcher, and no line that is lost or mixed up."""

from __future__ import annotations

import random
from itertools import zip_longest
from pathlib import Path

import pytest

from hvdcloud.node.run.log import FRAME_BYTES, Normaliser, RunLog, framed


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
    assert normalised(b"[0]<stdout>:done[1]<stdout>:also done\n") == b"[1] also done\n[0] done\n"


def test_a_long_line_that_open_mpi_tags_in_pieces_is_whole_again() -> None:
    pieces = b"[1,0]<stdout>:aaaa[1,0]<stdout>:bbbb[1,0]<stdout>:cc\n[1,1]<stdout>:x\n"

    assert normalised(pieces) == b"[0] aaaabbbbcc\n[1] x\n"


def test_a_progress_bar_keeps_its_carriage_returns() -> None:
    bar = b"[0]<stderr>: 10%\r[0]<stderr>: 20%\r[0]<stderr>: done\n"

    assert normalised(bar) == b"[0]  10%\r 20%\r done\n"


def tagged(launcher: str, rank: int, data: bytes, size: int) -> list[bytes]:
    """What a rank's bytes are as a launcher prints them: Gloo's in lines, Open MPI's in pieces."""
    text = b"".join(framed(data[at : at + FRAME_BYTES]) for at in range(0, len(data), FRAME_BYTES))
    if launcher == "gloo":
        return [b"[%d]<stdout>:%b" % (rank, line) for line in text.splitlines(keepends=True)]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    tag = b"[1,%d]<stdout>:" % rank
    return [tag + piece[:-1].replace(b"\n", b"\n" + tag) + piece[-1:] for piece in pieces]


@pytest.mark.parametrize("launcher", ["gloo", "mpi"])
def test_what_two_ranks_write_at_once_is_in_the_log_byte_for_byte(launcher: str) -> None:
    source = random.Random(launcher)
    written = {
        rank: source.randbytes(300_000) + "\0\r\r\n[1]<stdout>:x[1,0]<stderr>:münchen\n\n".encode() + b"no end \xe9"
        for rank in (0, 1)
    }
    streams = [tagged(launcher, rank, data, 4096) for rank, data in written.items()]
    log = normalised(*(piece for pair in zip_longest(*streams, fillvalue=b"") for piece in pair))
    for rank, data in written.items():
        prefix = b"[%d] " % rank
        lines = [line.removeprefix(prefix) for line in log.split(b"\n") if line.startswith(prefix)]
        assert b"\n".join(lines) == data


def test_a_frame_that_is_none_is_in_the_log_as_it_is() -> None:
    damaged = framed(b"damaged")[:-3]
    assert normalised(b"[0]<stdout>:" + damaged + b"\n") == b"[0] " + damaged + b"\n"


def test_a_progress_bar_is_shown_as_it_grows_and_two_share_a_line() -> None:
    normaliser = Normaliser()
    shown = b""
    for step in range(2):
        for rank in (0, 1):
            shown += normaliser.feed(b"[%d]<stderr>:%b" % (rank, framed(b"\r %d%%" % step)), now=step)
            shown += normaliser.flush(now=step + 0.5)
    assert shown == b"[0] \r 0%\r[1] \r 0%\r[0] \r 1%\r[1] \r 1%"


def test_a_line_of_another_rank_begins_behind_a_partial_one() -> None:
    normaliser = Normaliser()
    shown = normaliser.feed(b"[0]<stdout>:" + framed(b"loading ...")) + normaliser.flush()
    shown += normaliser.feed(b"[1]<stdout>:" + framed(b"ready\n") + b"[0]<stdout>:" + framed(b" done\n"))
    assert shown == b"[0] loading ...\n[1] ready\n[0]  done\n"


def test_a_partial_line_can_be_shown_before_it_ends() -> None:
    normaliser = Normaliser()

    assert normaliser.feed(b"[0]<stdout>:" + framed(b"password? ")) == b""
    assert normaliser.flush() == b"[0] password? "
    assert normaliser.feed(b"[0]<stdout>:" + framed(b"yes\n") + b"[1]<std") == b"yes\n"
    assert normaliser.flush() == b""
    assert normaliser.feed(b"out>:hi\n") == b"[1] hi\n"


def test_a_huge_line_passes_with_flat_memory() -> None:
    normaliser = Normaliser()
    size = sum(len(normaliser.feed(b"x" * 65536)) for _ in range(160)) + len(normaliser.close())

    assert size == len(b"[launcher] ") + 160 * 65536 + 1


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

    log.output(b"[0]<stdout>:" + framed(b"no newline"))
    log.note("node n1 was lost")
    log.output(b"[0]<stdout>:" + framed(b"still here\n"))
    log.close()

    assert (tmp_path / "log").read_bytes() == b"[0] no newline\n[hvdcloud] node n1 was lost\n[0] still here\n"
