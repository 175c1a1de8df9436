"""What `list`, `status`, `up` and a refused `down` show: on terminals of two widths, in colours and without, piped."""

from __future__ import annotations

import os
import subprocess
import sys

PRINTS = """
from datetime import datetime, timezone
from hvdcloud.checkpoints.verified_files import Unverified
from hvdcloud.cli.cluster import show_clusters
from hvdcloud.cli.status import show_status
from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.console import Console
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.changed_settings import Changes
from hvdcloud.lifecycle.down import Unsafe, refusal
from hvdcloud.lifecycle.run_result import result_of
from hvdcloud.lifecycle.status import StatusResult
from hvdcloud.providers.base import Listing
from hvdcloud.runs.state import RunState
from dataclasses import replace

RUN = "20261121-101112-abcdef"
console = Console()
console.named_here = "digits"
nodes = tuple(
    Node(name=f"digits-{n}", index=n, id=str(n), state=NodeState.RUNNING, address="127.0.0.1") for n in range(2)
)
here = Cluster(
    name="digits", id="abcdef", owner="ann-laptop", provider="local", nodes=nodes, expected_nodes=2, image="image",
    created=datetime(2026, 11, 21, 10, 0, tzinfo=timezone.utc), bucket="file:///b", worst_case_dollars=0.0,
)
there = replace(
    here, name="big", provider="gce", dollars_per_hour=1.5, dollars_so_far=0.31, worst_case_dollars=26.2,
    expected_nodes=3,
)
off = replace(
    there, worst_case_dollars=None, cost_notes=tuple(f"big-{n} is off, and its disk still costs" for n in (0, 1))
)
show_clusters(console, Listing(clusters=(here,)))
show_clusters(console, Listing(clusters=(there, here)))
show_clusters(console, Listing(clusters=(off,)))
show_clusters(console, Listing(clusters=(replace(off, cost_notes=off.cost_notes[:1]),)))

def state(run, **more):
    return RunState.from_json({"run": run, "started": 1.0, "ended": 9.0, "np": 2, **more})

ended = result_of("digits", state(RUN, state="done", result="failed", exit_code=3))
going = replace(result_of("digits", state("20261121-101212-abcdef", state="running")), seconds=192.0)
saving = replace(going, run="20261121-101312-abcdef", checkpoint_files=27)
show_status(console, StatusResult(
    cluster=here, whole=True, runs=[ended, going, saving], runs_unknown="", age_seconds=723.0, dollars_so_far=0.0,
    nodes_gone=1,
))
changes = Changes(
    summary="cluster digits was made before this changed: gce.machine_type n1-standard-8 → n1-standard-4, "
    "requirements.txt",
    command="hvdcloud down --name digits && hvdcloud up --name digits",
)
console.warn(f"{changes.summary}; {changes.command} applies it")
console.error(UsageError(changes.summary, hint=f"{changes.command} applies it"))
files = [Unverified(name=f"{n}.pt", reason="not pulled") for n in range(41)]
console.error(refusal(Unsafe(of_runs={RUN: files}), here, going=[RUN], from_here=True))
"""
ON_OUT = """\
CLUSTER  NODES  STATE  OWNER       CREATED
digits   2/2    whole  ann-laptop  2026-11-21 10:00:00Z
CLUSTER  NODES  STATE               $/H   SO FAR  AT WORST  OWNER       CREATED
big      2/3    NOT WHOLE, running  1.50  0.31    26.20     ann-laptop  2026-11-21 10:00:00Z
digits   2/2    whole               0.00  0.00    0.00      ann-laptop  2026-11-21 10:00:00Z
total    4                          1.50  0.31    26.20
CLUSTER  NODES  STATE               $/H   SO FAR  AT WORST  OWNER       CREATED
big      2/3    NOT WHOLE, running  1.50  0.31    no end    ann-laptop  2026-11-21 10:00:00Z
  big: big-0 is off, and its disk still costs and 1 more
CLUSTER  NODES  STATE               $/H   SO FAR  AT WORST  OWNER       CREATED
big      2/3    NOT WHOLE, running  1.50  0.31    no end    ann-laptop  2026-11-21 10:00:00Z
  big: big-0 is off, and its disk still costs
cluster digits on local, 12 min 03 s old, made by ann-laptop
NODE      STATE    SSH
digits-0  running  127.0.0.1:2222
digits-1  running  127.0.0.1:2222
RUN                     STATE    TIME        CHECKPOINTS
20261121-101112-abcdef  failed   8.0 s       0
20261121-101212-abcdef  running  3 min 12 s  -
20261121-101312-abcdef  running  3 min 12 s  27
checkpoints: file:///b
cost so far: $0.00
  without 1 node that ended before
"""
ON_ERR = """\
warning: cluster digits was made before this changed: gce.machine_type n1-standard-8 → n1-standard-4, \
requirements.txt; hvdcloud down && hvdcloud up applies it
error: cluster digits was made before this changed: gce.machine_type n1-standard-8 → n1-standard-4, requirements.txt
  → hvdcloud down && hvdcloud up applies it
error: digits is not deleted: run 20261121-101112-abcdef is still going
  41 files of run 20261121-101112-abcdef: not pulled
  → hvdcloud stop ends it
"""


def test_a_pipe_gets_these_lines() -> None:
    program = [sys.executable, "-c", PRINTS]
    ended = subprocess.run(
        program, capture_output=True, check=True, text=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"}
    )
    assert ended.stdout == ON_OUT
    assert ended.stderr == ON_ERR
