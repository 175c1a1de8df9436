"""Why `down` deletes nothing, as a user reads it, and the one command that helps."""

from __future__ import annotations

import io

import pytest

from hvdcloud.checkpoints.verified_files import Unverified
from hvdcloud.console import Console
from hvdcloud.lifecycle.down import refusal
from hvdcloud.remote.unsaved import Unsaved
from tests.support.views import cluster

A, B = "20261121-101112-abcdef", "20261121-111213-abcdef"
CLUSTER = cluster(owner="ann-laptop", nodes=())
STOPPED = Unsaved(text="node digits-1 is stopped and may hold more")


def checkpoints(count: int, reason: str = "not pulled", *, run: str = A) -> list[Unverified]:
    return [Unverified(run=run, name=f"{number}.pt", reason=reason) for number in range(count)]


def manifest(node: int, reason: str) -> Unverified:
    return Unverified(run=A, name=f"digits/{A}/.hvdcloud/manifest-{node}.json", reason=reason, node=node)


UNFINISHED = manifest(1, "node 1 has not finished uploading")
BAD = manifest(1, "what node 1 wrote is not verified: it is not JSON")
SCREENS: dict[str, tuple[list[Unsaved], list[Unverified], list[str], bool, str]] = {
    "a run that is still going": (
        [], [UNFINISHED, *checkpoints(2)], [A], True,
        f"""\
error: digits is not deleted: run {A} is still going
  2 files not verified on this disk
  {A}/0.pt: not pulled
  {A}/1.pt: not pulled
  → hvdcloud stop ends it
""",
    ),
    "one file, changed after it was pulled": (
        [], checkpoints(1, "/tmp/0.pt was changed after it was pulled"), [], True,
        f"""\
error: digits is not deleted: 1 file not verified on this disk
  {A}/0.pt: /tmp/0.pt was changed after it was pulled
  → hvdcloud pull, then hvdcloud down
""",
    ),
    "a stopped node": (
        [STOPPED], [UNFINISHED], [], True,
        f"""\
error: digits is not deleted: node digits-1 is stopped and may hold more
  run {A}: node 1 has not finished uploading
  → hvdcloud down tries again; with --force it gives up what is not on this disk
""",
    ),
    "nothing pull could fetch after the head was lost": (
        [], [UNFINISHED], [], True,
        f"""\
error: digits is not deleted: run {A}: node 1 has not finished uploading
  → hvdcloud down tries again; with --force it gives up what is not on this disk
""",
    ),
    "a manifest that can not be used, and files in the bucket": (
        [], [BAD, *checkpoints(1)], [], True,
        f"""\
error: digits is not deleted: run {A}: what node 1 wrote is not verified: it is not JSON
  1 file not verified on this disk
  {A}/0.pt: not pulled
  → hvdcloud pull, then hvdcloud down --force, which gives up the rest
""",
    ),
    "another machine's cluster": (
        [], [UNFINISHED], [], False,
        f"""\
error: digits is not deleted: run {A}: node 1 has not finished uploading
  → hvdcloud stop on the machine of ann-laptop ends its run; hvdcloud down --force gives it up
""",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("on_nodes", "missing", "going", "from_here", "screen"), SCREENS.values(), ids=SCREENS)
def test_a_refusal_says_what_would_be_lost_and_the_command_that_helps(
    on_nodes: list[Unsaved], missing: list[Unverified], going: list[str], from_here: bool, screen: str
) -> None:
    err = io.StringIO()
    console = Console(err=err)
    console.named_here = "digits"
    console.error(refusal(on_nodes, missing, CLUSTER, going=going, from_here=from_here))
    assert err.getvalue() == screen


def test_the_hint_names_a_cluster_that_is_not_this_folders() -> None:
    refused = refusal([], checkpoints(1), CLUSTER, going=[], from_here=True)
    assert refused.hint == "hvdcloud pull --name digits, then hvdcloud down --name digits"


def test_many_reasons_are_not_a_wall_of_text() -> None:
    silent = [Unsaved(text=f"node digits-{index} does not answer") for index in range(64)]
    lines = refusal(silent, checkpoints(40), CLUSTER, going=[], from_here=True).details.splitlines()
    assert lines[0] == "node digits-1 does not answer"
    assert lines[-1] == "and 94 more"
    assert len(lines) == 11
