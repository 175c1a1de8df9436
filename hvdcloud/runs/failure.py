"""Why a run failed, from its ranks' ends and what they printed: the user's exception, or the last lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvdcloud.runs.reports import RankRecord
from hvdcloud.runs.stacks import WORKSPACE
from hvdcloud.runs.state import RunState
from hvdcloud.visible import says, words

SHOWN_LINES = 10
_LONGEST = 160
_AFTER_LINES = 60
"""A message may have many lines, and libraries say more when they end."""
_PYTHON_ENDS = (1, 134)
"""The exit codes of an exception, and of one after which a library aborts."""
_LAST_SECONDS = 60.0
_ON_REQUEST = "stopped on request"
_HEADER = re.compile(r"Traceback \(most recent call last\):$")  # A progress bar may come before it in the same line.
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in .+)?$')
_EXCEPTION = re.compile(r"(?:[\w<>]+\.)*([A-Za-z_]\w*(?:: ?.*)?)$")
# What a word alone has not: a message, a module, or a name like these.
_IS_EXCEPTION = re.compile(r".*(?:[.:]|Error|Exception|Interrupt|Exit|Iteration)")
# Before each line of a traceback, where torch.distributed is in use.
_TORCH_RANK = re.compile(r"^\[rank\d+\]: ?")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python[\d.]+/|^<")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)(?:\.\w+)*'$")
_CONSEQUENCE = re.compile(
    r"Horovod has been shut down|ncclRemoteError|gloo.{0,200}(?:closed|reset|broken pipe|timed out)", re.IGNORECASE
)
"""What a rank prints when another one has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception that ended a Python program."""

    text: str
    """As Python prints it, without its module: `ValueError: my bug`."""
    place: str
    """`train.py:12`: the innermost line of the user's own code; empty if there is none."""
    lines: Sequence[str]
    """Its traceback, without the frames of libraries."""
    at: int
    """The number of its last line, among the lines that were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What made a run fail."""

    reason: str
    """`rank 1 (digits-1) raised ValueError: my bug (train.py:12)`"""
    lines: Sequence[str] = ()
    """The rank's last lines, or the launcher's."""
    last_line: str = ""
    """The one of them that says most: the exception."""
    missing_module: str = ""
    """The Python module that the image does not have: `pandas`; empty: none is missing."""


class _Frame(NamedTuple):
    place: str
    own: bool
    """Of the user's code, not of a library."""
    lines: list[str]


def raised_in(lines: Sequence[str]) -> Raised | None:
    """The last exception whose traceback is among one rank's lines: of chained ones that which was raised last."""
    found: Raised | None = None
    frames: list[_Frame] | None = None
    for at, line in enumerate(lines):
        if _HEADER.search(line):
            frames = []
        elif frame := _FRAME.match(line):
            # A syntax error of the program itself has no header.
            frames = [] if frames is None else frames
            place = f"{frame[1].removeprefix(WORKSPACE)}:{frame[2]}"
            frames.append(_Frame(place, not _LIBRARY.search(frame[1]), [line.replace(WORKSPACE, "")]))
        elif frames is None:
            continue
        elif line.startswith(" ") or not line:
            if frames and line:
                frames[-1].lines.append(line)
        elif (raised := _EXCEPTION.match(line)) and _IS_EXCEPTION.match(line):
            own, text = [frame for frame in frames if frame.own], raised[1].replace(WORKSPACE, "")
            traceback = [line for frame in own or frames for line in frame.lines][1 - SHOWN_LINES :]
            found = Raised(
                text=text, place=own[-1].place if own else "", lines=[*map(_short, (*traceback, text))], at=at
            )
            frames = None
    return found


def told(state: RunState) -> str:
    """Why a run ended, by its head: marked as its words, unless they are what we would say ourselves."""
    if state.stuck is not None and state.result == "failed":
        return state.stuck.text
    if not state.reason or state.reason == _ON_REQUEST:
        return state.reason
    known = any(record.text == state.reason for record in state.ranks)
    return words(state.reason) if known else says("the head", state.reason)


def explain(
    state: RunState, *, ranks: Mapping[int, Sequence[tuple[int, str]]], launcher: Sequence[str] = ()
) -> Failure | None:
    """Why a run failed; None: it did not.

    Args:
        ranks: the last lines of each rank, each with its number in the log.
        launcher: the last lines that no rank wrote.
    """
    if state.result != "failed":
        return None
    if state.stuck is not None:
        return Failure(reason=told(state), lines=state.stuck.lines)
    if all(record.text != state.reason for record in state.ranks):
        # Where the exit code is not a rank's, it is the launcher's.
        return Failure(
            reason=told(state), lines=[_short(line) for line in launcher[-SHOWN_LINES:]] if state.exit_code else ()
        )
    failed = [record for record in state.ranks if record.exit_code and not record.terminated]
    if state.elastic is not None and state.ended is not None:
        # The others got over what ended earlier.
        recent = state.ended - _LAST_SECONDS
        failed = [record for record in failed if (record.ended or recent) >= recent] or failed
    if not failed:
        # The reason names a rank that did not fail: the state contradicts itself.
        return Failure(reason=state.reason, lines=())
    # The head has judged by the ends alone: what ends first, or with a code of its own, counts. What was printed tells
    # which of the ranks that ended alike only followed the others.
    candidates = [_Candidate.of(record, ranks.get(record.rank, ())) for record in failed]
    first = min(candidates, key=lambda each: (each.follows, each.record.exit_code != state.exit_code, each.began))
    return first.failure()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A rank that failed, as a possible cause."""

    record: RankRecord
    raised: Raised | None
    lines: Sequence[str]
    began: tuple[float, float]
    """Its exception's place in the log, then when it ended."""

    @classmethod
    def of(cls, record: RankRecord, numbered: Sequence[tuple[int, str]]) -> _Candidate:
        lines = [_TORCH_RANK.sub("", text) for _, text in numbered]
        raised = raised_in(lines) if record.exit_code in _PYTHON_ENDS else None
        if raised is not None and len(lines) - raised.at > _AFTER_LINES:
            raised = None  # It was caught, and the program continued.
        at = numbered[raised.at][0] if raised else float("inf")
        return cls(record=record, raised=raised, lines=lines, began=(at, record.ended or 0.0))

    @property
    def follows(self) -> bool:
        """Whether it failed because another one had ended."""
        said = [self.raised.text] if self.raised else self.lines[-SHOWN_LINES:]
        return any(map(_CONSEQUENCE.search, said))

    def failure(self) -> Failure:
        """What is said of it."""
        record = self.record
        who = f"rank {record.rank}" + (f" ({words(record.node, most=_LONGEST)})" if record.node else "")
        if (raised := self.raised) is not None:
            missing = _MISSING_MODULE.match(raised.text)
            return Failure(
                reason=f"{who} raised {_short(raised.text)}" + (f" ({raised.place})" if raised.place else ""),
                lines=raised.lines,
                last_line=raised.text,
                missing_module=missing[1] if missing else "",
            )
        lines = [_short(line.replace(WORKSPACE, "")) for line in self.lines if line.strip()][-SHOWN_LINES:]
        text = lines[-1].strip().removeprefix("hvdcloud: ") if lines else ""
        reason = f"{who} {record.end}" + (f"; its last line: {_short(text)}" if text else "")
        return Failure(reason=reason, lines=lines if len(lines) > 1 else [], last_line=text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
