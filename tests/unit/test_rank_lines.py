"""`hvdcloud logs --rank K` shows that rank's lines, however the log was cut into pieces."""

from __future__ import annotations

import pytest

from hvdcloud.runs.log_lines import RankLines

LOG = (
    b"[launcher] starts\n[0] one\n[1] [0] quoted\n[10] ten\n[0] \xff\xfe not text\n[0] bar 10%\rbar 50%\x0c\rbar 100%\n"
    b"[1] two\n\n[hvdcloud] over\n[0] without an end"
)
OURS = b"[0] one\n[0] \xff\xfe not text\n[0] bar 10%\rbar 50%\x0c\rbar 100%\n[0] without an end"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 1000])
def test_only_the_lines_of_the_rank_are_shown_whatever_the_pieces(size: int) -> None:
    lines = RankLines(0)
    assert b"".join(lines.feed(LOG[at : at + size]) for at in range(0, len(LOG), size)) == OURS


def test_ranks_with_a_common_first_digit_are_told_apart() -> None:
    assert RankLines(1).feed(LOG) == b"[1] [0] quoted\n[1] two\n"
    assert RankLines(10).feed(LOG) == b"[10] ten\n"


def test_a_line_is_shown_before_its_end_is_there() -> None:
    lines = RankLines(3)
    assert lines.feed(b"[3] load") == b"[3] load"
    assert lines.feed(b"ing ...") == b"ing ..."
    assert lines.feed(b" done\n[4] no\n[3] ") == b" done\n[3] "
