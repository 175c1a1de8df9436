"""Workers of an elastic run, for tests: one on each node, and whom they are connected to."""

from __future__ import annotations

from hvdcloud.node.elastic.workers import Process, Workers
from hvdcloud.node.run.outcome import Ended
from hvdcloud.runs.reports import RankRecord

ADDRESSES = {f"d-{index}": f"10.0.0.{index + 2}" for index in range(4)}


def world(nodes: int = 3) -> Workers:
    """A worker on each node; the world changed at the time 0."""
    processes = {(f"d-{index}", 7): Process(index, f"d-{index}", f"d-{index}") for index in range(nodes)}
    made = Workers(processes, dict(ADDRESSES))
    made.changed_at = 0.0
    return made


def see(made: Workers, node: str, *others: str, now: float, connections: int = 2, pid: int = 7) -> None:
    """The worker on a node waits for others' connections, and is connected to these."""
    workers = {str(pid): {ADDRESSES[other]: connections for other in others}}
    made.connected(node, workers, listening=list(workers), now=now)


def see_all(made: Workers, *, now: float) -> None:
    """Everybody is connected to everybody."""
    nodes = sorted(made.nodes())
    for node in nodes:
        see(made, node, *(other for other in nodes if other != node), now=now)


def end(made: Workers, node: str, exit_code: int, *, at: float, terminated: bool = False) -> None:
    """The first worker of a node ends. `terminated`: Horovod has told it to."""
    made.processes[node, 7].ended = Ended(RankRecord(rank=0, exit_code=exit_code, terminated=terminated), at)
