"""From what was seen of a run to how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvdcloud.runs.reports import RankRecord, signal_name
from hvdcloud.units import counted

CONSEQUENCE_SECONDS = 2.5
"""A rank that exits with a code of its own choice takes this long to leave Python; its peers fail meanwhile."""
NODE_LOST_SECONDS = 3.0
"""Ranks that fail this shortly before their peer's node is noticed missing failed because of it."""
_PYTHON_ERROR = 1


class Ended(NamedTuple):
    """A rank's end."""

    record: RankRecord
    at: float
    """When it ended, in monotonic seconds on the head."""


class Loss(NamedTuple):
    """A node that does not answer any more."""

    node: str
    why: str
    at: float


@dataclass
class Ranks:
    """The ranks that have started, and how they have ended, as their agents report it."""

    started: dict[int, str] = field(default_factory=dict)
    """The node of each."""
    ended: list[Ended] = field(default_factory=list)
    """The ends that count for the verdict."""
    reaped: list[Ended] = field(default_factory=list)
    """Those that we or the agents have brought about."""
    reaping: bool = False
    """Whether we bring them about from now on."""

    @property
    def failed(self) -> bool:
        return any(ended.record.exit_code for ended in self.ended)

    def note_end(self, message: Mapping[str, Any], *, now: float) -> Ended | None:
        """Note how a rank ended. Returns its end if it counts for the verdict. It does not matter when the report
        arrives: agents may be slow, and the verdict waits for all of them."""
        ended = Ended(RankRecord.from_json(message["record"]), now - float(message.get("ago", 0.0)))
        if message.get("reaped") or self.reaping:
            self.reaped.append(ended)
            return None
        self.ended.append(ended)
        return ended

    def nodes(self) -> set[str]:
        """The nodes with ranks that have not ended."""
        ended = {each.record.rank for each in self.ended}
        return {node for rank, node in self.started.items() if rank not in ended}

    def records(self) -> list[RankRecord]:
        """What is known of each."""
        records = {rank: RankRecord(rank=rank, node=node) for rank, node in self.started.items()}
        records |= {ended.record.rank: ended.record for ended in [*self.ended, *self.reaped]}
        return [records[rank] for rank in sorted(records)]


class Outcome(NamedTuple):
    """How a run ended."""

    result: str
    """succeeded, failed, stopped or lost."""
    exit_code: int | None
    """The training program's own: that of the first rank to fail."""
    reason: str


def judge(
    *,
    np: int,
    ended: Sequence[Ended],
    lost: Sequence[Loss],
    stopped: bool,
    trouble: str,
    trouble_is_loss: bool,
    launcher: int | None,
    program: str = "horovodrun",
) -> Outcome:
    """How the run ended, and what ended it: what came first counts, since a rank's failure or a lost node makes others
    fail.

    Args:
        ended: only those ends that the supervisor and the agents did not bring about.
        stopped: a user asked for the end, before the ranks had ended.
        trouble: what else made us end the run: a full disk, a killed agent.
        launcher: its exit code, if it ended by itself.
        program: its name.
    """
    codes = {each.record.rank: each.record.exit_code for each in ended}
    # The launcher ends ranks when one has failed, or when it is itself told to end; then their 0 says nothing.
    terminated = any(each.record.terminated for each in ended)
    if len(codes) >= np and not any(codes.values()) and not terminated:
        return Outcome("succeeded", 0, "")
    failure = _first_failure(ended)
    loss = min(lost, key=lambda each: each.at, default=None)
    if loss is not None and (failure is None or loss.at - failure.at < NODE_LOST_SECONDS):
        return Outcome("lost", None, f"node {loss.node} was lost: {loss.why}")
    if launcher is not None and launcher < 0 and not trouble:
        # A launcher that ends because of a rank exits; one that is killed takes its ranks with it.
        number = -launcher
        return Outcome("failed", 128 + number, f"{program} was killed by {signal_name(number)}")
    if failure is not None:
        return Outcome("failed", failure.record.exit_code, failure.record.text)
    if stopped:
        return Outcome("stopped", None, "stopped on request")
    if trouble:
        return Outcome("lost" if trouble_is_loss else "failed", None, trouble)
    if launcher is None:
        return Outcome("lost", None, "the run was ended for no known reason")
    if launcher == 0 and terminated:
        return Outcome("failed", None, f"{program} ended its ranks although none had failed")
    if launcher == 0:
        return Outcome("failed", None, f"{program} ended, but only {len(codes)} of {np} ranks did")
    why = f"{program} exited with {launcher} before its ranks had; the last lines of the log say why"
    return Outcome("failed", launcher, why)


def _first_failure(ended: Sequence[Ended]) -> Ended | None:
    failures = [each for each in ended if each.record.exit_code]
    if not failures:
        return None
    # The launcher ends a rank only because another one has failed.
    failures.sort(key=lambda each: (bool(each.record.terminated), each.at))
    first = failures[0]
    for other in failures[1:]:
        if other.at - first.at < CONSEQUENCE_SECONDS and _rather(other.record, first.record):
            return other
    return first


def _rather(other: RankRecord, first: RankRecord) -> bool:
    """Whether a rank is more likely the cause than the one that ended first."""
    # The peers of a rank that exits with 3 raise as soon as its connections close, and may be gone before it.
    chosen = other.signal is None and not other.terminated and other.exit_code != _PYTHON_ERROR
    return first.exit_code == _PYTHON_ERROR and chosen


@dataclass
class Worker:
    """One process of an elastic run, from its start to its end or to the loss of its node."""

    rank: int
    """When it started: Horovod may give it another one later."""
    node: str
    alias: str = ""
    """The name by which Horovod knew its node."""
    ended: Ended | None = None
    lost: bool = False
    """Its node was lost while it ran."""
    got_over: bool = False
    """It ended, and the others continued without it: it is not what ended the run."""

    @property
    def lives(self) -> bool:
        return self.ended is None and not self.lost

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and not self.ended.record.exit_code

    @property
    def completed(self) -> bool:
        """It ended with 0 by itself: the 0 of one that was told to end says nothing."""
        return self.succeeded and self.ended is not None and not self.ended.record.terminated

    @property
    def failed(self) -> bool:
        """By itself, not because Horovod had asked it to end, and the others did not get over it."""
        record = self.ended.record if self.ended else None
        return record is not None and bool(record.exit_code) and not self.got_over and not record.terminated


def judge_elastic(
    *,
    workers: Sequence[Worker],
    least: int,
    lost: Sequence[Loss],
    stopped: bool,
    trouble: str,
    launcher: int | None,
    program: str = "horovodrun",
) -> Outcome:
    """How an elastic run ended, and what ended it.

    horovodrun exits with 0 as soon as one worker has, regardless of the others (registration.py): only where all that
    were training with it ended well too, or were lost with their nodes, has the training ended well.

    Args:
        workers: since Horovod was last started.
        least: nodes below which it waited.
        lost: nodes that are missing now.
        stopped, trouble, launcher, program: as `judge` takes them.
    """
    done = [each for each in workers if each.completed]
    if done:
        first = min(worker.ended.at for worker in done if worker.ended)
        unfinished = [
            worker
            for worker in workers
            if not worker.succeeded and not worker.lost and (worker.ended is None or worker.ended.at >= first)
        ]
        if not unfinished:
            return Outcome("succeeded", 0, "")
        if not stopped:
            one = next(worker for worker in done if worker.ended and worker.ended.at == first)
            failures = [worker.ended for worker in unfinished if worker.failed and worker.ended]
            code = failures[0].record.exit_code if failures else None
            ended = f"the worker on {one.node} that began as rank {one.rank} exited with 0"
            others = f"while {len(unfinished)} more were training, which ends an elastic job"
            return Outcome("failed", code, f"{ended} {others}")
    if stopped:
        return Outcome("stopped", None, "stopped on request")
    if trouble:
        return Outcome("lost", None, trouble)
    failures = [worker.ended for worker in workers if worker.failed and worker.ended]
    if failures:
        first_failure = _first_failure(failures)
        assert first_failure is not None
        return Outcome("failed", first_failure.record.exit_code, first_failure.record.text)
    if lost:
        names = ", ".join(sorted({loss.node for loss in lost}))
        text = f"nothing was heard from {names}, and fewer than {counted(least, 'node')} were left"
        return Outcome("lost", None, text)
    if launcher is not None and launcher < 0:
        number = -launcher
        return Outcome("failed", 128 + number, f"{program} was killed by {signal_name(number)}")
    why = f"{program} exited with {launcher}, but no worker ended its training; the log's last lines say why"
    return Outcome("failed", launcher or None, why)


def may_be_a_consequence(ended: Sequence[Ended], *, np: int, now: float) -> bool:
    """Whether the failure that we know of may yet turn out to be that of another rank, which is about to end."""
    first = _first_failure(ended)
    if first is None or len(ended) >= np:
        return False
    doubtful = first.record.terminated or first.record.exit_code == _PYTHON_ERROR
    return bool(doubtful) and now - first.at < CONSEQUENCE_SECONDS
