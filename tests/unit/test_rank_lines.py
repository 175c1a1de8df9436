"""`hvdcloud logs` shows the job's own lines, with `--rank K` that rank's, however the log was cut into pieces."""

from __future__ import annotations

import pytest

from hvdcloud.runs.log_lines import LineFilter, job_lines, rank_lines

LOG = (
    b"[launcher] starts\n[0] one\n[1] [0] quoted\n[10] ten\n[0] \xff\xfe not text\n[0] bar 10%\rbar 50%\x0c\rbar 100%\n"
    b"[1] two\n\n[hvdcloud] over\n[0] without an end"
)
OURS = b"[0] one\n[0] \xff\xfe not text\n[0] bar 10%\rbar 50%\x0c\rbar 100%\n[0] without an end"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 1000])
def test_only_the_lines_of_the_rank_are_shown_whatever_the_pieces(size: int) -> None:
    lines = rank_lines(0)
    assert b"".join(lines.feed(LOG[at : at + size]) for at in range(0, len(LOG), size)) == OURS


def test_ranks_with_a_common_first_digit_are_told_apart() -> None:
    assert rank_lines(1).feed(LOG) == b"[1] [0] quoted\n[1] two\n"
    assert rank_lines(10).feed(LOG) == b"[10] ten\n"


def test_a_line_is_shown_before_its_end_is_there() -> None:
    lines = rank_lines(3)
    assert lines.feed(b"[3] load") == b"[3] load"
    assert lines.feed(b"ing ...") == b"ing ..."
    assert lines.feed(b" done\n[4] no\n[3] ") == b" done\n[3] "


FAILED = (
    b"[0] epoch 1/3\n[1] ValueError: my bug\n[launcher] Process 1 exit with status code 1.\n[launcher] \n"
    b"[hvdcloud] rank 1 on digits-1 exited with 1\n[hvdcloud] node digits-2 was lost: it is gone\n"
    b"[0] [launcher] quoted\n\nno prefix\n[0] \n[2026-11-22] dated\n"
)


def shown(lines: LineFilter, log: bytes, size: int) -> bytes:
    return b"".join(lines.feed(log[at : at + size]) for at in range(0, len(log), size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 1000])
def test_the_launchers_lines_and_its_verdict_are_not_the_jobs(size: int) -> None:
    left = [line for line in FAILED.split(b"\n") if not line.startswith((b"[launcher]", b"[hvdcloud] rank"))]
    assert shown(job_lines(), FAILED, size) == b"\n".join(left)


def test_a_progress_bar_is_shown_as_it_grows() -> None:
    lines = job_lines()
    assert lines.feed(b"[12] 10%") == b"[12] 10%"
    assert lines.feed(b"\r 20%") == b"\r 20%"
