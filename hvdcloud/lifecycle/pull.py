"""`hvdcloud pull`: checkpoints from the bucket to this disk, each verified."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import RUN_ID, list_runs
from hvdcloud.checkpoints.names import sentences
from hvdcloud.checkpoints.pull import PulledRun, PullError
from hvdcloud.checkpoints.pull import pull as fetch
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.errors import CapacityError, CheckpointError, HvdcloudError, UsageError, first_of
from hvdcloud.lifecycle.ssh_nodes.homecoming import bring_home
from hvdcloud.storage.base import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.steps import Steps
    from hvdcloud.storage.base import Bucket

DEFAULT_FOLDER = "checkpoints"
MARKER, MARK = ".gitignore", "# Made by hvdcloud pull."
"""A file of a folder for checkpoints, and its first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """What is on this disk now."""

    cluster: str
    bucket: str
    runs: Sequence[PulledRun]
    ended: bool
    """None of them writes any more."""
    seconds: float


def pull(context: Context, *, run_id: str | None, target: Path | None) -> PullResult:
    """Fetch what is not on this disk yet, and verify what is.

    Args:
        run_id: one run; None: every run of the cluster that is up, else the newest run in the bucket.
        target: the folder that gets a folder per run; None: `checkpoints` in the project.

    Raises:
        UsageError: there is nothing to pull.
        CheckpointError: something is missing or does not verify; everything else has been fetched.
    """
    cluster = context.find()
    away: Sequence[HvdcloudError] = ()
    if cluster is not None:
        away = bring_home(context, cluster)
    bucket = context.bucket(cluster)
    with context.console.waiting("pull", "looking for runs"):
        if run_id is None and cluster is not None:
            runs = list_runs(bucket, context.name, suffix=cluster.id)
        else:
            runs = [kept_run(bucket, context.name, run_id)]
    if away and not runs:
        raise first_of([*away])
    pulled = pull_runs(context, bucket=bucket, runs=runs, target=target, ended=cluster is None)
    for error in away:
        context.console.warn(f"not every checkpoint is on this machine: {error.message}")
    return pulled


def pull_runs(
    context: Context, *, bucket: Bucket, runs: Sequence[str], target: Path | None = None, ended: bool = True
) -> PullResult:
    """Fetch these runs, in order; `ended`: none of them writes any more."""
    started = time.monotonic()
    context.state.make()
    folder = target_folder(context, target)
    verified_files = VerifiedFiles(context.state.verified_files)
    pulled: list[PulledRun] = []
    errors: list[HvdcloudError] = []
    with context.console.steps() as steps:
        for run in runs:
            try:
                pulled.append(_pull_run(context, steps, bucket, run, folder=folder, verified_files=verified_files))
            except (CheckpointError, CapacityError) as error:
                # The other runs need not pay for what is wrong with this one.
                errors.append(error)
    if errors:
        raise first_of(errors)
    took = time.monotonic() - started
    return PullResult(cluster=context.name, bucket=bucket.url, runs=pulled, ended=ended, seconds=took)


def _pull_run(
    context: Context, steps: Steps, bucket: Bucket, run: str, *, folder: Path, verified_files: VerifiedFiles
) -> PulledRun:
    def on_progress(done: int, total: int) -> None:
        steps.update(f"pull {run}", "fetching", done=lambda: done + _unfinished_bytes(folder / run), total=total)

    steps.update(f"pull {run}", "reading what there is", if_slow=True)
    failure: PullError | None = None
    try:
        pulled = fetch(
            bucket, cluster=context.name, run=run, target=folder, verified_files=verified_files, on_progress=on_progress
        )
    except PullError as error:
        failure, pulled = error, error.pulled
    for sentence in sentences(pulled.refused, "not written to this disk"):
        context.console.warn(f"run {run}: {sentence}")
    if failure is not None:
        raise failure
    steps.finish(f"pull {run}")
    return pulled


def _unfinished_bytes(folder: Path) -> int:
    """The size of the files that are being fetched into this folder; their space may be reserved before."""
    count = 0
    for path in folder.rglob(f".*{PARTIAL_SUFFIX}"):
        # It has its own name by now, or is deleted.
        with contextlib.suppress(FileNotFoundError):
            count += path.stat().st_blocks * 512
    return count


def target_folder(context: Context, target: Path | None) -> Path:
    """The folder for checkpoints, which exists then. One that is made here or was empty is kept out of Git and out of
    the code that runs are sent. Raises UsageError: it holds something else, or cannot be made."""
    folder = check_target(context, target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            (folder / MARKER).write_text(f"{MARK}\n*\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", hint="--to DIR names another folder") from error
    return folder


def check_target(context: Context, target: Path | None = None) -> Path:
    """The folder for checkpoints, which is not made.

    What is in a bucket decides the names that are written below it. So a folder that `--to` names, or that a link
    stands for, has to be new, empty, or one that holds pulled checkpoints already.

    Raises:
        UsageError: it is none of these, or no folder.
    """
    folder = (target or context.config.project_dir / DEFAULT_FOLDER).absolute()
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise UsageError(f"{folder} is not a folder", hint="--to DIR names another one") from error
    if (target is None and not folder.is_symlink()) or _holds_checkpoints(folder, names):
        return folder
    raise UsageError(
        f"{folder} holds other files than pulled checkpoints, which could be overwritten",
        hint=f"--to {folder / DEFAULT_FOLDER} or another folder that is new or empty",
    )


def _holds_checkpoints(folder: Path, names: Sequence[str]) -> bool:
    """Whether an earlier pull made this folder, or there are only folders of runs in it, or nothing."""
    if all(map(RUN_ID.fullmatch, names)):
        return True
    try:
        with (folder / MARKER).open(encoding="utf-8") as lines:
            return lines.readline(len(MARK) + 1).rstrip() == MARK
    except (OSError, UnicodeError):
        return False


def kept_run(bucket: Bucket, cluster: str, run_id: str | None) -> str:
    """This run of a cluster, or its newest; raises UsageError: the bucket has nothing of it."""
    runs = list_runs(bucket, cluster)
    if not runs or run_id not in (None, *runs):
        hint = f"its runs: {', '.join(runs[-5:])}" if runs else "hvdcloud run starts one"
        raise UsageError(f"{bucket.url} holds no run {f'{run_id} ' if run_id else ''}of {cluster}", hint=hint)
    return run_id or runs[-1]
