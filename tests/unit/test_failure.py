"""What made a run fail is told by its ranks' output, in the user's own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hvdcloud.runs.failure import Raised, raised_in
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import RankRecord
from hvdcloud.runs.state import ElasticLimits, RunState

PLAIN = """\
Traceback (most recent call last):
  File "/workspace/my_train.py", line 12, in <module>
    main()
  File "/workspace/my_train.py", line 7, in main
    raise ValueError("my bug")
ValueError: my bug
"""
IN_A_LIBRARY = """\
Traceback (most recent call last):
  File "/workspace/data/load.py", line 3, in <module>
    json.loads("{")
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/orjson/a.py", line 337, in decode
    obj, end = self.raw_decode(s, idx=_w(s, 0).end())
json.decoder.JSONDecodeError: Expecting property name: line 1 column 2 (char 1)
"""
CHAINED = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 3, in load
    open("x")
FileNotFoundError: [Errno 2] No such file or directory: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/workspace/train.py", line 5, in <module>
    raise RuntimeError("no data") from error
RuntimeError: no data
"""
SYNTAX = """\
  File "/workspace/train.py", line 2
    def x(:
          ^
SyntaxError: invalid syntax
"""
DATA_LOADER = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 30, in <module>
    for batch in loader:
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 701, in __next__
    data = self._next_data()
RuntimeError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File "/workspace/digits.py", line 9, in __getitem__
    raise ValueError("bad sample")
ValueError: bad sample
"""
AFTER_A_BAR = "\r 10%|#   | 1/10 [00:01<00:09]" + PLAIN
WITH_ANOTHER_STREAM = PLAIN.replace("    main()\n", "    main()\nepoch 1/3: loss 0.5\nLoss: 0.5\n")
GPU_MEMORY = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 9, in <module>
    model(images)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/conv.py", line 549, in _conv_forward
    return F.conv2d(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


@pytest.mark.parametrize(
    ("printed", "text", "place"),
    [
        pytest.param(PLAIN, "ValueError: my bug", "my_train.py:7", id="plain"),
        pytest.param(
            IN_A_LIBRARY,
            "JSONDecodeError: Expecting property name: line 1 column 2 (char 1)",
            "data/load.py:3",
            id="raised in a library",
        ),
        pytest.param(CHAINED, "RuntimeError: no data", "train.py:5", id="chained"),
        pytest.param(SYNTAX, "SyntaxError: invalid syntax", "train.py:2", id="syntax error"),
        pytest.param(DATA_LOADER, "ValueError: bad sample", "digits.py:9", id="data loader"),
        pytest.param(AFTER_A_BAR, "ValueError: my bug", "my_train.py:7", id="after a progress bar"),
        pytest.param(WITH_ANOTHER_STREAM, "ValueError: my bug", "my_train.py:7", id="with lines of another stream"),
        pytest.param(
            GPU_MEMORY,
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "train.py:9",
            id="CUDA out of memory",
        ),
        pytest.param(
            PLAIN.replace("ValueError: my bug", "__main__.Stop"), "Stop", "my_train.py:7", id="without a message"
        ),
    ],
)
def test_an_exception_is_found_with_the_users_line(printed: str, text: str, place: str) -> None:
    found = raised_in(printed.splitlines())
    assert found is not None
    assert (found.text, found.place) == (text, place)
    assert all("site-packages" not in line for line in found.lines)
    assert found.lines[-1].endswith(text)


@pytest.mark.parametrize(
    "printed", ["epoch 1/3: loss 0.5\n", '  File "x.py", line 3 in f\n', "ValueError: a word\n", ""]
)
def test_what_is_no_traceback_has_none(printed: str) -> None:
    assert raised_in(printed.splitlines()) is None


def test_frames_of_libraries_stay_where_the_user_has_none() -> None:
    lines = [line.replace("/workspace/", "/opt/venv/lib/python3.11/site-packages/") for line in PLAIN.splitlines()]
    found = raised_in(lines)
    assert isinstance(found, Raised)
    assert found.place == ""
    assert len(found.lines) == 5


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


def test_of_ranks_that_raise_alike_the_first_in_the_log_counts() -> None:
    log = log_of((1, PLAIN), (0, PLAIN.replace("my bug", "also")))
    assert explained(log, [record(0, 1), record(1, 1, ended=10.1)], "rank 0 on n0 exited with 1")[0] == MY_BUG


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
            log_of((1, "epoch 1/3\ngoing wrong"), (0, PEER)),
            [record(0, 1, ended=9.9), record(1, 4)],
            "rank 1 on n1 exited with 4",
            "rank 1 (n1) exited with 4; its last line: going wrong",
            id="shell",
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


def test_what_the_others_of_an_elastic_run_got_over_is_not_the_cause() -> None:
    records = [record(2, 1, ended=100.0), record(1, 1, ended=995.0)]
    log = log_of((2, PLAIN.replace("my bug", "long ago")), (1, PLAIN))
    state = {"elastic": ElasticLimits(min=1, max=3), "ended": 1000.0}
    assert explained(log, records, "rank 1 on n1 exited with 1", **state)[0] == MY_BUG


def test_a_run_that_did_not_fail_has_no_failure() -> None:
    reader = LogReader(elastic=False)
    reader.feed(log_of((0, PLAIN)))
    assert reader.failure(RunState(result="succeeded", exit_code=0, ranks=[record(0, 0)])) is None
    assert reader.failure(RunState(result="stopped", reason="stopped on request", ranks=[record(0, 143)])) is None
