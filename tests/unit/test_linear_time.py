"""However long a line of a job's output is and whatever it holds, reading it takes time in proportion to its length."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hvdcloud.cli.screen import harmless
from hvdcloud.lifecycle.top import _Watch
from hvdcloud.node.run.log import Normaliser
from hvdcloud.report.metrics import MetricsReader
from hvdcloud.report.page import _line
from hvdcloud.runs.failure import Raised, raised_in
from hvdcloud.runs.log_lines import Lines, counted, job_lines, numbers_in, rank_lines
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import RankRecord
from hvdcloud.runs.state import RunState
from hvdcloud.visible import JobText, as_left, visible, words

# It compares times, of up to a second each.
pytestmark = pytest.mark.nightly

SIZES = tuple(8_000 * 2**power for power in range(8))
"""Of a line, up to a megabyte: where the time grows with its square, the first of them tell."""
LONG_ENOUGH = 0.25
"""Seconds of CPU from which on two times can be compared on a busy machine."""
LINEAR = 3.0
"""How many times longer twice the length may take; where the time grows with its square it is 4."""
STEEPEST = 3
"""Where even a time that grows with the cube would stay below `LONG_ENOUGH`, longer lines tell no more."""

ALPHABETS = {
    "numbers": "1,",
    "points": "1.",
    "digits": "7",
    "spaces": " ",
    "letters": "a",
    "escapes": "\x1b",
    "sequences": "\x1b[",
    "parameters": "\x1b[0;",
    "links": "\x1b]8;;",
    "brackets": "[",
    "closing": "] ",
    "quotes": "\"'",
    "equals": "=",
    "colons": ": ",
    "returns": "\r",
    "backspaces": "\b",
    "tabs": "\t",
    "loss": "loss ",
    "losses": "loss=1,",
    "accuracy": "acc:1.",
    "epochs": "epoch 1",
    "epoch of": "epoch 1 of ",
    "epoch and spaces": "epoch" + " " * 50,
    "steps": "global_step",
    "rates": "1 images ",
    "rates of": "images/s ",
    "numbers of images": "1,1,1,1,1,1,1 images / ",
    "prefixes": "[0] ",
    "tags": "[0]<stdout>:",
    "halves of tags": "[1,",
    "frames": '  File "a", line 1',
    "more frames": '", line 1, in ',
    "modules": "a.b",
    "errors": "a: ",
    "groups": "| + ",
    "rulers": "+-",
    "gloo": "gloo ",
    "paths": "/lib/python3.",
    "dates": "[2026: ",
    "separators": "\u2028",
    "continued": "resumed from ",
}


def read(reader: LogReader | MetricsReader, data: bytes) -> None:
    for start in range(0, len(data), 1 << 16):
        reader.feed(data[start : start + (1 << 16)])


def follow(line: str) -> None:
    reader = LogReader(elastic=True)
    read(reader, b"[0] Traceback (most recent call last):\n[0] " + line.encode() + b"\n")
    failed = RunState(result="failed", exit_code=1, reason="rank 0 on n exited with 1")
    failed.ranks = [RankRecord(rank=0, node="n", exit_code=1)]
    reader.failure(failed)


def measure(line: str) -> None:
    reader = MetricsReader(samples=[], started=None, elastic=True)
    read(reader, b"[0] " + line.encode() + b"\n")
    reader.metrics()


def drawn(line: str) -> None:
    for text in _Watch.shortened(f"[0] {line}\n"):
        harmless(text)


def explain(line: str) -> Raised | None:
    # What is kept of a line is not longer.
    cut = next(iter(Lines().feed(line.encode() + b"\n"))).decode(errors="replace")
    return raised_in(["Traceback (most recent call last):", *[cut] * (len(line) // 4000)])


def whole(line: str) -> None:
    """The expressions alone, without a limit on what is read of a line."""
    for text in (line, f"loss{line}", f"epoch 1{line}"):
        numbers_in(text)
        counted(text)


PARSERS: dict[str, Callable[[str], object]] = {
    "run and logs": follow,
    "report": measure,
    "top": drawn,
    "page": _line,
    "traceback": explain,
    "numbers": whole,
    "lines of the job": lambda line: job_lines().feed(f"[0] {line}\n{line}\n".encode()),
    "lines of a rank": lambda line: rank_lines(0).feed(f"{line}\n[0] {line}\n".encode()),
    "terminal": lambda line: JobText().feed(line.encode()),
    "message": visible,
    "words": words,
    "left": as_left,
    "log of a node": lambda line: Normaliser().feed(f"{line}\n[0]<stdout>:{line}\n".encode()),
}


def seconds(parse: Callable[[str], object], alphabet: str, size: int) -> float:
    """Of CPU: what else the machine does is not counted."""
    line = (alphabet * (size // len(alphabet) + 1))[:size]
    began = time.process_time()
    parse(line)
    return time.process_time() - began


def not_linear(parse: Callable[[str], object], alphabet: str) -> str:
    """Why the time does not grow with the length; empty if it does."""
    before = 0.0
    for size in SIZES:
        took = seconds(parse, alphabet, size)
        if took * (SIZES[-2] / size) ** STEEPEST < LONG_ENOUGH:
            return ""
        # One alone may be bad luck.
        if before > LONG_ENOUGH and min(took, seconds(parse, alphabet, size)) > LINEAR * before:
            return f"{size} characters took {took:.2f} s, half as many {before:.2f} s"
        before = took
    return ""


@pytest.mark.parametrize("parser", PARSERS)
def test_the_time_of_a_parser_grows_with_the_length_of_a_line(parser: str) -> None:
    slow = {name: why for name, alphabet in ALPHABETS.items() if (why := not_linear(PARSERS[parser], alphabet))}
    assert not slow
