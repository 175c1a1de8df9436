"""What a run's result is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hvdcloud.errors import (
    CapacityError,
    CheckpointError,
    CredentialsError,
    HvdcloudError,
    JobFailedError,
    NodeError,
    UsageError,
)
from hvdcloud.lifecycle.logs import Followed
from hvdcloud.runs.data_progress import RunData
from hvdcloud.runs.failure import told
from hvdcloud.runs.reports import RankWaits
from hvdcloud.runs.retry import Attempt
from hvdcloud.runs.slow_ranks import SlowRanks, slow_ranks_of
from hvdcloud.runs.state import Member, RunState
from hvdcloud.units import kept_files, seconds, some

if TYPE_CHECKING:
    from hvdcloud.cluster.cost import Cost
    from hvdcloud.runs.progress import Position
    from hvdcloud.runs.stacks import Stuck

_DATA_ERRORS: Mapping[int | None, type[HvdcloudError]] = {
    int(each.code): each for each in (UsageError, CredentialsError, CapacityError, NodeError)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended, or that it is active."""

    run: str
    cluster: str
    state: str
    """running | succeeded | failed | stopped | lost"""
    ranks: int
    exit_code: int | None = None
    reason: str = ""
    seconds: float
    checkpoint_files: int = 0
    other_files: int = 0
    """How many of them are neither models nor of the checkpoint directory."""
    left_out: Sequence[str] = ()
    """Files and folders of the project's folder that were too large to be kept."""
    checkpoints_complete: bool = False
    last_line: str = ""
    """The last line that rank 0 printed, if the run was followed; of an elastic run, that any rank printed; of a run
    that failed, that which the first rank to fail printed of it."""
    last_lines: Sequence[str] = ()
    """The last lines of the first rank to fail, if the run failed."""
    missing_module: str = ""
    """The Python module that its image does not have, if that made the run fail; else empty."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest of each number that it printed: `loss`, `accuracy`, `images/s`."""
    progress: Position | None = None
    """The last epoch or step, if it was followed and prints them."""
    cost: Cost | None = None
    """The cost of its cluster, where that went with the run; None also where it costs nothing."""
    world: int | None = None
    """How many ranks train now; None: the run is not elastic, or has ended."""
    restarts: int = 0
    """How often the ranks were started again."""
    members: Sequence[Member] = ()
    data: RunData | None = None
    """Its data sets; None: it has none."""
    waits: Sequence[RankWaits] = ()
    """How long ranks have waited for each other; empty: it is not counted."""
    slow_ranks: SlowRanks | None = None
    """The ranks that the others wait for, in the last minute, or over the whole run if it has ended."""
    nodes_lost: Sequence[str] = ()
    attempts: Sequence[Attempt] = ()
    """All attempts of a run with `run.retry`; this run is the last one's."""
    stuck: Stuck | None = None

    @property
    def summary(self) -> str:
        """One line for people."""
        code = f", exit code {self.exit_code}" if self.exit_code else ""
        return f"run {self.run} {self.state} after {seconds(self.seconds)}{code}; {self.checkpoints}"

    @property
    def checkpoints(self) -> str:
        """`12 checkpoint files, all in the bucket`."""
        files = kept_files(self.checkpoint_files, self.other_files, noun="checkpoint file")
        if self.checkpoints_complete:
            kept = f"{files}, all in the bucket" if self.checkpoint_files else files
            return kept + (f"; not kept: {some(self.left_out, most=3)}" if self.left_out else "")
        return f"{files} in the bucket, and not all that its nodes hold" if self.state != "running" else files

    def raise_for_failure(self, *, again: str | None = None, pulled: bool = False) -> None:
        """Turn anything but success into an error.

        Args:
            again: the command that repeats all, the nodes included; None: the cluster still exists.
            pulled: every checkpoint has been fetched and verified since.

        Raises:
            JobFailedError: the job failed, was stopped or lost.
            CheckpointError: it succeeded, but not every checkpoint is in the bucket.
            UsageError, CredentialsError, CapacityError, NodeError: its data could not be fetched.
        """
        if self.state == "running":
            return
        if self.state == "succeeded":
            if not self.checkpoints_complete and not pulled:
                raise CheckpointError(
                    f"run {self.run} succeeded, but not every checkpoint is in the bucket; its nodes hold them",
                    hint="fix the bucket; hvdcloud down then saves them before it deletes the nodes",
                )
            return
        if self.state == "failed" and self.data is not None and self.data.failure is not None:
            # The error of a run whose data a node cannot have, of the kind that the node says.
            failed = self.data.failure
            kind = _DATA_ERRORS.get(failed.exit_code, NodeError)
            message = f"run {self.run} did not start: node {failed.node}: {failed.error}"
            raise kind(message, hint=failed.hint or f"hvdcloud logs {self.run} shows its output")
        code = self.exit_code if self.exit_code is not None else 1
        reason = self.reason or f"exit code {code}"
        pull = f"; hvdcloud pull {self.run} fetches its checkpoints" if self.checkpoint_files else ""
        hint = f"{again}, once it is fixed" if again else ""
        if self.missing_module:
            made_again = again or "hvdcloud down and hvdcloud up make the nodes again"
            hint = f"add the package of {self.missing_module} to requirements.txt; then {made_again}"
        raise JobFailedError(
            reason if self.state == "failed" else f"run {self.run} {self.state}: {reason}",
            hint=hint or f"hvdcloud logs {self.run} shows its output{pull}",
            exit_code=code,
            details="\n".join([*self.last_lines, self.summary]),
        )


def result_of(cluster: str, state: RunState) -> RunResult:
    """From the node program's state of a run."""
    return RunResult(
        run=state.run,
        cluster=cluster,
        state=(state.result or "running") if state.done else "running",
        ranks=state.np or len(state.ranks),
        exit_code=state.exit_code,
        reason=told(state),
        seconds=(state.ended or time.time()) - state.started if state.started else 0.0,
        checkpoint_files=state.checkpoints.files,
        other_files=state.checkpoints.others,
        left_out=state.checkpoints.left_out,
        checkpoints_complete=state.checkpoints.complete,
        world=None if state.done else state.world,
        restarts=state.restarts,
        members=state.members,
        data=RunData.of(state),
        waits=state.waits,
        slow_ranks=slow_ranks_of(state),
        nodes_lost=state.nodes_lost,
        stuck=state.stuck,
    )


def result_of_followed(cluster: str, followed: Followed) -> RunResult:
    """From a run's state and its whole log."""
    result, log = result_of(cluster, followed.state), followed.log
    failure = log.failure(followed.state)
    return replace(
        result,
        last_line=(failure.last_line if failure else "") or log.last_line,
        last_lines=failure.lines if failure else (),
        reason=failure.reason if failure else result.reason,
        missing_module=failure.missing_module if failure else "",
        progress=log.position,
        metrics=log.metrics,
    )
