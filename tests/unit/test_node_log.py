"""The run's log: one prefix per line, with either launcher, and no line that is lost or mixed up."""

from __future__ import annotations

import random
from itertools import zip_longest

import pytest

from hvdcloud.node.run.log import FRAME_BYTES, Normaliser, framed


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


def test_a_huge_line_passes_with_flat_memory() -> None:
    normaliser = Normaliser()
    size = sum(len(normaliser.feed(b"x" * 65536)) for _ in range(160)) + len(normaliser.close())

    assert size == len(b"[launcher] ") + 160 * 65536 + 1
