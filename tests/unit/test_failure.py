"""What made a run fail is told by its ranks' output, in the user's own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import RankRecord
from hvdcloud.runs.state import RunState

PLAIN = """\
Traceback (most recent call last):
  File "/workspace/my_train.py", line 12, in <module>
    main()
  File "/workspace/my_train.py", line 7, in main
    raise ValueError("my bug")
ValueError: my bug
"""


PEER = """\
Traceback (most recent call last):
  File "/workspace/my_train.py", line 8, in main
    hvd.allreduce(torch.ones(1))
horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception.
"""
LAUNCHER = "Process 0 exit with status code 1.\nTraceback (most recent call last):\nRuntimeError: Horovod detected\n"


def record(rank: int, code: int, *, ended: float = 10.0, **more: Any) -> RankRecord:
    return RankRecord(rank=rank, node=f"n{rank}", exit_code=code, ended=ended, **more)


def log_of(*parts: tuple[int | str, str]) -> bytes:
    """A log of ranks' and others' lines, one part after the other."""
    return "".join(f"[{who}] {line}\n" for who, text in parts for line in text.splitlines()).encode()


def interleaved(*parts: tuple[int, str]) -> bytes:
    """A log in which several ranks' lines alternate."""
    texts = [[f"[{rank}] {line}\n" for line in text.splitlines()] for rank, text in parts]
    longest = max(map(len, texts))
    return "".join(text[at] for at in range(longest) for text in texts if at < len(text)).encode()


def explained(
    log: bytes, records: Sequence[RankRecord], reason: str, *, launcher: int | None = None, **state: Any
) -> tuple[str, list[str]]:
    reader = LogReader(elastic=False)
    for at in range(0, len(log), 100):
        reader.feed(log[at : at + 100])
    code = next((each.exit_code for each in records if each.text == reason), launcher)
    found = reader.failure(RunState(result="failed", exit_code=code, reason=reason, ranks=records, **state))
    assert found is not None
    return found.reason, list(found.lines)


MY_BUG = "rank 1 (n1) raised ValueError: my bug (my_train.py:7)"


@pytest.mark.parametrize(
    "log", [log_of((1, PLAIN), (0, PEER)), log_of((0, PEER), (1, PLAIN)), interleaved((0, PEER), (1, PLAIN))]
)
def test_a_rank_that_ends_first_because_of_another_is_not_the_cause(log: bytes) -> None:
    # Rank 0 is gone before rank 1 has left Python: the head can only tell their ends.
    said, lines = explained(log, [record(0, 1), record(1, 1, ended=10.1)], "rank 0 on n0 exited with 1")
    assert said == MY_BUG
    assert lines[-1] == "ValueError: my bug"


@pytest.mark.parametrize(
    ("log", "records", "reason", "said"),
    [
        pytest.param(
            log_of((0, "python: can't open file '/workspace/nope.py': [Errno 2] No such file or directory")),
            [record(0, 2), record(1, 2)],
            "rank 0 on n0 exited with 2",
            "rank 0 (n0) exited with 2; its last line: python: can't open file 'nope.py': [Errno 2] No such file or "
            "directory",
            id="missing file",
        ),
        pytest.param(
            log_of((0, "hvdcloud: command not found: pyhton")),
            [record(0, 127)],
            "rank 0 on n0 exited with 127",
            "rank 0 (n0) exited with 127; its last line: command not found: pyhton",
            id="missing command",
        ),
        pytest.param(
            log_of((1, "no data"), (0, PEER)),
            [record(0, 1, ended=9.9), record(1, 1)],
            "rank 0 on n0 exited with 1",
            "rank 1 (n1) exited with 1; its last line: no data",
            id="sys.exit with a message",
        ),
        pytest.param(
            log_of((0, PEER)),
            [record(0, 1, ended=9.9), record(1, 139, signal=11)],
            "rank 0 on n0 exited with 1",
            "rank 1 (n1) was killed by signal 11 (SIGSEGV)",
            id="signal",
        ),
        pytest.param(
            log_of((0, PEER)),
            [record(0, 143, signal=15, terminated=True), record(1, 137, signal=9, out_of_memory=True)],
            "rank 1 on n1 was killed by the kernel, which was out of memory",
            "rank 1 (n1) was killed by the kernel, which was out of memory",
            id="out of memory",
        ),
        pytest.param(
            log_of((1, PLAIN + "terminate called without an active exception")),
            [record(1, 134, signal=6)],
            "rank 1 on n1 was killed by signal 6 (SIGABRT)",
            MY_BUG,
            id="aborted after an exception",
        ),
        pytest.param(
            log_of((1, PLAIN + "caught\n" * 100 + "over")),
            [record(1, 1)],
            "rank 1 on n1 exited with 1",
            "rank 1 (n1) exited with 1; its last line: over",
            id="an exception that was caught long ago",
        ),
    ],
)  # fmt: skip
def test_the_cause_is_told_with_the_last_line(log: bytes, records: list[RankRecord], reason: str, said: str) -> None:
    assert explained(log + log_of(("launcher", LAUNCHER)), records, reason)[0] == said


def test_where_no_rank_is_the_cause_horovodruns_own_lines_are_shown() -> None:
    log, records = log_of(("launcher", LAUNCHER)), [record(0, 143, signal=15)]
    why = "horovodrun exited with 1 before its ranks had; the last lines of the log say why"
    assert explained(log, records, why, launcher=1) == (f"the head says: {why}", LAUNCHER.splitlines())
    why = "the log could not be written on node n0: No space left on device"
    assert explained(log, records, why) == (f"the head says: {why}", [])


def test_a_run_that_did_not_fail_has_no_failure() -> None:
    reader = LogReader(elastic=False)
    reader.feed(log_of((0, PLAIN)))
    assert reader.failure(RunState(result="succeeded", exit_code=0, ranks=[record(0, 0)])) is None
    assert reader.failure(RunState(result="stopped", reason="stopped on request", ranks=[record(0, 143)])) is None


def test_an_exception_is_found_where_torch_puts_its_rank_before_every_line() -> None:
    text = "".join(f"[rank1]: {line}\n" for line in PLAIN.splitlines())
    reason = record(1, 1).text
    said, lines = explained(log_of((1, text)), [record(1, 1)], reason)
    assert said == "rank 1 (n1) raised ValueError: my bug (my_train.py:7)"
    assert not any("[rank1]" in line for line in lines)
