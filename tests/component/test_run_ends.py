"""The last lines of a run, a launch and an interrupted command; test_console.py has what a terminal makes of lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.pull import PulledRun
from hvdcloud.cli.main import after_interrupt
from hvdcloud.cli.runs import show_end, show_pull
from hvdcloud.cluster.cost import Cost
from hvdcloud.cluster.model import Cluster
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.errors import HvdcloudError
from hvdcloud.lifecycle.down import DownResult
from hvdcloud.lifecycle.logs import Followed, detached
from hvdcloud.lifecycle.pull import PullResult
from hvdcloud.lifecycle.run_result import RunResult, result_of_followed
from hvdcloud.providers.local.platform import LocalPlatform
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import RankRecord, UploadReport
from hvdcloud.runs.state import RunState

RUN = "20261121-101112-abcdef"
FOLDER = f"/home/me/digits/checkpoints/{RUN}"
SUCCESS = b"[0] epoch 11/12: loss 0.101, accuracy 0.988\n[0] epoch 12/12: loss 0.098, accuracy 0.992\n"
FAILURE = b"""[1] Traceback (most recent call last):
[1]   File "/workspace/my_train.py", line 12, in <module>
[1]     main()
[1]   File "/workspace/my_train.py", line 7, in main
[1]     raise ValueError("my bug")
[1] ValueError: my bug
[launcher] Process 0 exit with status code 1.
[launcher] Traceback (most recent call last):
"""
MISSING = b"""[0] Traceback (most recent call last):
[0]   File "/workspace/my_train.py", line 1, in <module>
[0]     import pandas.io
[0] ModuleNotFoundError: No module named 'pandas'
"""
Scene = Callable[[Console], object]


def run(log: bytes, *, files: int = 12, complete: bool = True, **state: Any) -> RunResult:
    reader = LogReader(elastic=False)
    reader.feed(log)
    uploaded = UploadReport(files=files, complete=complete)
    found = RunState(run=RUN, state="done", started=1.0, ended=81.0, checkpoints=uploaded, **state)
    return result_of_followed("digits", Followed(state=found, log=reader))


def failed(log: bytes) -> RunResult:
    ranks = [RankRecord(rank=rank, node=f"digits-{rank}", exit_code=1, ended=80.0 + rank) for rank in (0, 1)]
    return run(log, files=0, result="failed", exit_code=1, reason="rank 0 on digits-0 exited with 1", ranks=ranks)


SUCCEEDED = run(SUCCESS, result="succeeded", exit_code=0)
LOST = run(SUCCESS, complete=False, result="lost", reason="node digits-1 was lost: no heartbeat for 26 s")
CLUSTER = Cluster(
    name="digits", id="abcdef", provider="gce", owner="me", created=datetime.now(timezone.utc), expected_nodes=2,
    nodes=(), image="i", bucket="gs://b", dollars_per_hour=0.92,
)  # fmt: skip


def pulled(files: int, *, complete: bool = True, ended: bool = True) -> PullResult:
    entry = PulledRun(run=RUN, folder=Path(FOLDER), files=files, bytes_fetched=5_700_000, complete=complete)
    return PullResult(cluster="digits", bucket="file:///b", runs=[entry], ended=ended, seconds=1.0)


def launch(result: RunResult, *, files: int = 12) -> Scene:
    gone = DownResult(cluster="digits", deleted=["a", "b", "c"], nothing_to_do=False, seconds=1.5)
    local = LocalPlatform(Config.model_validate({"name": "digits"}))
    return lambda console: show_end(console, local, result, pulled(files), gone, took=80.4, again="hvdcloud launch")


def raises(error: HvdcloudError) -> Scene:
    def scene(_: Console) -> None:
        raise error

    return scene


GONE = "digits is gone: 3 objects deleted in 1.5 s; listing again found nothing left"
NO_CHECKPOINT = f"run {RUN} has written no checkpoint"
FAILED = f"  run {RUN} failed after 1 min 20 s, exit code 1; no checkpoints"
MY_BUG = [
    "error: rank 1 (digits-1) raised ValueError: my bug (my_train.py:7)",
    '    File "my_train.py", line 12, in <module>',
    "      main()",
    '    File "my_train.py", line 7, in main',
    '      raise ValueError("my bug")',
    "  ValueError: my bug",
    FAILED,
]
NO_PANDAS = [
    "error: rank 0 (digits-0) raised ModuleNotFoundError: No module named 'pandas' (my_train.py:1)",
    '    File "my_train.py", line 1, in <module>',
    "      import pandas.io",
    "  ModuleNotFoundError: No module named 'pandas'",
    FAILED,
]
ADD = "  → add the package of pandas to requirements.txt; then"
SCENES: dict[str, tuple[Scene, Sequence[str]]] = {
    "launch that costs": (
        launch(replace(SUCCEEDED, cost=Cost(dollars=0.113, dollars_per_hour=0.92, seconds=442.0, nodes=2))),
        [
            GONE,
            "cost: $0.11 for 2 nodes, 7 min 22 s at $0.92/h",
            f"✓ digits trained: accuracy 0.992 · 1 min 20 s · $0.11 · 12 checkpoints → {FOLDER}",
        ],
    ),
    "launch fails": (
        launch(failed(FAILURE), files=0),
        [NO_CHECKPOINT, GONE, *MY_BUG, "  → hvdcloud launch, once it is fixed"],
    ),
    "launch of a script that lacks a package": (
        launch(failed(MISSING), files=0),
        [NO_CHECKPOINT, GONE, *NO_PANDAS, f"{ADD} hvdcloud launch"],
    ),
    "pull": (
        lambda console: show_pull(console, pulled(12)),
        [f"✓ 12 checkpoint files of run {RUN}, verified (5.7 MB fetched) → {FOLDER}"],
    ),
    "pull of a run that ended early": (
        lambda console: show_pull(console, pulled(3, complete=False)),
        [
            f"3 checkpoint files of run {RUN}, verified (5.7 MB fetched), in {FOLDER}; "
            "not everything reached the bucket before it ended"
        ],
    ),
    "pull of a run with its nodes": (
        lambda console: show_pull(console, pulled(3, complete=False, ended=False)),
        [f"3 checkpoint files of run {RUN}, verified (5.7 MB fetched), in {FOLDER}; its nodes may hold more"],
    ),
    "exception": (
        lambda _: failed(FAILURE).raise_for_failure(),
        [*MY_BUG, f"  → hvdcloud logs {RUN} shows its output"],
    ),
    "a package is missing": (
        lambda _: failed(MISSING).raise_for_failure(),
        [*NO_PANDAS, f"{ADD} hvdcloud down and hvdcloud up make the nodes again"],
    ),
    "killed node": (
        lambda _: LOST.raise_for_failure(),
        [
            f"error: run {RUN} lost: the head says: node digits-1 was lost: no heartbeat for 26 s",
            f"  run {RUN} lost after 1 min 20 s; 12 checkpoint files in the bucket, and not all that its nodes hold",
            f"  → hvdcloud logs {RUN} shows its output; hvdcloud pull {RUN} fetches its checkpoints",
        ],
    ),
    "Ctrl-C in the build": (
        raises(after_interrupt("launch")),
        ["launch is stopped; the same command continues; hvdcloud list shows what there is"],
    ),
    "Ctrl-C in the run": (
        raises(detached(CLUSTER, RUN, down_when_done=True)),
        [
            f"detached: run {RUN} continues, and then its nodes end themselves; "
            "hvdcloud logs -f --name digits follows it, hvdcloud pull --name digits fetches its checkpoints"
        ],
    ),
    "Ctrl-C in run": (
        raises(detached(CLUSTER, RUN, down_when_done=False)),
        [
            f"detached: run {RUN} continues, and its nodes stay, at $0.92/h, until hvdcloud down "
            "--name digits; hvdcloud logs -f --name digits follows it"
        ],
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_last_lines_say_what_came_of_it_and_what_to_type_next(name: str) -> None:
    scene, lines = SCENES[name]
    printed = io.StringIO()
    console = Console(out=printed, err=printed)
    try:
        scene(console)
    except HvdcloudError as error:
        console.error(error)
    assert printed.getvalue().splitlines() == lines
