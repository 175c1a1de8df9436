"""How fast the template `torch` trains on one node with one core, and on two nodes with one core each."""

from __future__ import annotations

import re

from tests.bench.measure import BenchError, run
from tests.bench.workplace import HVDCLOUD, Project, Workplace

FINAL = re.compile(r"final: accuracy (\d\.\d+), (\d+) images/s, (\d+) rank")
NODES = (1, 2)


def measure(place: Workplace, project: Project, *, nodes: int) -> dict[str, float]:
    """One `hvdcloud launch`: the template's own images/s (median over its epochs) and its accuracy.

    Raises:
        BenchError: it did not train on this many nodes.
    """
    text = run([HVDCLOUD, "launch", "--nodes", str(nodes)], cwd=project.folder, env=place.env).text
    found = FINAL.search(text)
    if found is None or int(found[3]) != nodes:
        raise BenchError(f"no `final:` line of {nodes} rank(s) in:\n{text}")
    return {"images_per_second": float(found[2]), "accuracy": float(found[1])}
