"""Why `down` deletes nothing, as a user reads it, and the one command that helps."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from hvdcloud.checkpoints.verified_files import Unverified
from hvdcloud.cluster.model import Cluster
from hvdcloud.console import Console
from hvdcloud.lifecycle.down import Unsafe, refusal
from hvdcloud.remote.unsaved import Hazard, Unsaved

A, B = "20261121-101112-abcdef", "20261121-111213-abcdef"
CLUSTER = Cluster(
    name="digits", id="abcdef", owner="ann-laptop", provider="gce", created=datetime.now(timezone.utc),
    expected_nodes=2, nodes=(), image="image", bucket="gs://bucket",
)  # fmt: skip
STOPPED = Unsaved(hazard=Hazard.AWAY, node="digits-1", text="node digits-1 is stopped and may hold more")
SILENT = Unsaved(hazard=Hazard.SILENT, text="node digits-1 does not answer: timed out")
FULL = Unsaved(hazard=Hazard.PENDING, run=A, text=f"{A}: the bucket's disk is full")


def checkpoints(count: int, reason: str = "not pulled") -> list[Unverified]:
    return [Unverified(name=f"{number}.pt", reason=reason) for number in range(count)]


def manifest(run: str, node: int, reason: str) -> Unverified:
    return Unverified(name=f"digits/{run}/.hvdcloud/manifest-{node}.json", reason=reason, node=node)


UNFINISHED = manifest(A, 1, "node 1 has not finished uploading")
BAD = replace(manifest(A, 1, "what node 1 wrote is not verified: it is not JSON"), is_bad=True)
SCREENS = {
    "a run that is still going": (
        Unsafe(of_runs={A: [UNFINISHED, *checkpoints(27)]}), [A], True,
        f"""\
error: digits is not deleted: run {A} is still going
  27 files of run {A}: not pulled
  → hvdcloud stop ends it
""",
    ),
    "many files in the bucket": (
        Unsafe(of_runs={A: checkpoints(40), B: checkpoints(1)}), [], True,
        """\
error: digits is not deleted: 41 files of 2 runs: not pulled
  → hvdcloud pull, then hvdcloud down
""",
    ),
    "one file, changed after it was pulled": (
        Unsafe(of_runs={A: checkpoints(1, "/tmp/0.pt was changed after it was pulled")}), [], True,
        f"""\
error: digits is not deleted: 1 file of run {A}: /tmp/0.pt was changed after it was pulled
  {A}/0.pt: /tmp/0.pt was changed after it was pulled
  → hvdcloud pull, then hvdcloud down
""",
    ),
    "a stopped node": (
        Unsafe(on_nodes=[STOPPED], of_runs={A: [UNFINISHED]}), [], True,
        """\
error: digits is not deleted: node digits-1 is stopped and may hold more
  → hvdcloud down --force gives up what it may hold
""",
    ),
    "a stopped node, and files in the bucket": (
        Unsafe(on_nodes=[STOPPED], of_runs={A: [UNFINISHED, *checkpoints(2)]}), [], True,
        f"""\
error: digits is not deleted: node digits-1 is stopped and may hold more
  2 files of run {A}: not pulled
  {A}/0.pt: not pulled
  {A}/1.pt: not pulled
  → hvdcloud pull, then hvdcloud down --force, which gives up the rest
""",
    ),
    "a node that does not answer": (
        Unsafe(on_nodes=[SILENT], of_runs={A: [UNFINISHED]}), [], True,
        """\
error: digits is not deleted: node digits-1 does not answer: timed out
  → hvdcloud down --force gives up what it may hold
""",
    ),
    "nothing pull could fetch after the head was lost": (
        Unsafe(of_runs={A: [UNFINISHED]}), [], True,
        f"""\
error: digits is not deleted: run {A}: node 1 has not finished uploading
  → hvdcloud down tries again; with --force it gives up what is not in the bucket
""",
    ),
    "a file that is named like hvdcloud's own": (
        Unsafe(of_runs={A: [Unverified(name="x/.hvdcloud/manifest-1.json", reason="not pulled")]}), [], True,
        f"""\
error: digits is not deleted: 1 file of run {A}: not pulled
  {A}/x/.hvdcloud/manifest-1.json: not pulled
  → hvdcloud pull, then hvdcloud down
""",
    ),
    "a full bucket": (
        Unsafe(on_nodes=[FULL], of_runs={A: []}), [], True,
        f"""\
error: digits is not deleted: {A}: the bucket's disk is full
  → hvdcloud down tries again; with --force it gives up what is not in the bucket
""",
    ),
    "a manifest that can not be used, and nothing else": (
        Unsafe(of_runs={A: [BAD], B: []}), [], True,
        f"""\
error: digits is not deleted: run {A}: what node 1 wrote is not verified: it is not JSON
  → hvdcloud down --force gives up what only node 1 may hold; every other checkpoint is on this disk
""",
    ),
    "a manifest that can not be used, and files in the bucket": (
        Unsafe(of_runs={A: [BAD, *checkpoints(2)]}), [], True,
        f"""\
error: digits is not deleted: run {A}: what node 1 wrote is not verified: it is not JSON
  2 files of run {A}: not pulled
  {A}/0.pt: not pulled
  {A}/1.pt: not pulled
  → hvdcloud pull, then hvdcloud down --force, which gives up the rest
""",
    ),
    "another machine's cluster": (
        Unsafe(of_runs={A: [UNFINISHED]}), [], False,
        f"""\
error: digits is not deleted: run {A}: node 1 has not finished uploading
  → hvdcloud stop on the machine of ann-laptop ends its run; hvdcloud down --force gives it up
""",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("unsafe", "going", "from_here", "screen"), SCREENS.values(), ids=SCREENS)
def test_a_refusal_says_what_would_be_lost_and_the_command_that_helps(
    unsafe: Unsafe, going: list[str], from_here: bool, screen: str
) -> None:
    err = io.StringIO()
    console = Console(err=err)
    console.named_here = "digits"
    console.error(refusal(unsafe, CLUSTER, going=going, from_here=from_here))
    assert err.getvalue() == screen


def test_the_hint_names_a_cluster_that_is_not_this_folders() -> None:
    refused = refusal(Unsafe(of_runs={A: checkpoints(1)}), CLUSTER, going=[], from_here=True)
    assert refused.hint == "hvdcloud pull --name digits, then hvdcloud down --name digits"


def test_many_reasons_are_not_a_wall_of_text() -> None:
    silent = [Unsaved(hazard=Hazard.SILENT, text=f"node digits-{index} does not answer") for index in range(64)]
    lines = refusal(Unsafe(on_nodes=silent), CLUSTER, going=[], from_here=True).details.splitlines()
    assert lines[0] == "node digits-1 does not answer"
    assert lines[-1] == "and 53 more"
    assert len(lines) == 11
