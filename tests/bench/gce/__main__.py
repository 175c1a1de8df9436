"""`python -m tests.bench.gce`: provider gce's `up` and `down` of 1 to 256 nodes; see README.md one folder up."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.bench.gce import PROJECT, report
from tests.bench.gce.emulated import EmulatorProcess
from tests.bench.gce.report import Life
from tests.bench.measure import Sample, run
from tests.bench.publish import ends_in_words, publish, say
from tests.bench.workplace import HVDCLOUD, REPOSITORY

NODES = (1, 4, 16, 64, 256)
FEWEST_RUNS = 5
"""Fewer do not replace the results that are committed."""
COMMAND_ROUNDS = 10


def life(emulator: EmulatorProcess, nodes: int) -> Life:
    """`up` and `down` once by the provider, then once by hand with the very body that the provider sent."""
    sample = _python(emulator, "life", emulator.url, str(nodes))
    calls = emulator.end_of_life()
    body = emulator.folder / "body.json"
    body.write_text(json.dumps(next(call["body"] for call in calls if call["method"].endswith(".bulkInsert"))))
    floor = _python(emulator, "floor", emulator.url, str(body))
    emulator.end_of_life()
    return Life(sample=sample, floor=floor, calls=calls)


def _python(emulator: EmulatorProcess, program: str, *words: str) -> Sample:
    argv = [sys.executable, "-m", f"tests.bench.gce.{program}", *words]
    return run(argv, cwd=REPOSITORY, env=emulator.environment)


def commands(emulator: EmulatorProcess) -> Mapping[str, list[float]]:
    """How long commands take that have next to nothing to do."""
    project = emulator.folder / "project"
    project.mkdir()
    config = {"name": "bench", "provider": "gce", "gce": {"project": PROJECT}}
    (project / "hvdcloud.yaml").write_text(yaml.safe_dump(config))
    everything = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "hvdcloud --help": [HVDCLOUD, "--help"],
        "hvdcloud list": [HVDCLOUD, "list"],
        "python -c 'import google.cloud.compute_v1'": [sys.executable, "-c", "import google.cloud.compute_v1"],
    }
    own = {"HVDCLOUD_GOOGLE_ENDPOINT": emulator.url, "HVDCLOUD_STATE_DIR": str(emulator.folder / "state")}
    environment = {**emulator.environment, **own}
    found: dict[str, list[float]] = {title: [] for title in everything}
    for turn in range(1 + COMMAND_ROUNDS):
        for title, argv in everything.items():
            seconds = run(argv, cwd=project, env=environment).seconds
            if turn:
                found[title].append(seconds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gce", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 5)")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="how many (default 1 4 16 64 256)")
    parser.add_argument("--results", type=Path, help="folder for gce.json and gce.md")
    options = parser.parse_args()
    if options.runs < 1 or min(options.nodes) < 1:
        parser.error("--runs and --nodes are 1 or more")
    load = os.getloadavg()[0]
    lives: dict[int, list[Life]] = {nodes: [] for nodes in options.nodes}
    with ends_in_words(), EmulatorProcess() as emulator:
        for turn in range(1 + options.runs):
            for nodes in options.nodes:
                one = life(emulator, nodes)
                name = f"round {turn}/{options.runs}" if turn else "warm-up"
                say(f"{name}: {nodes} node(s): up {one.up:.2f} s, by hand {one.floor_up:.2f} s")
                if turn:
                    lives[nodes].append(one)
        say("commands")
        found = report.document(lives, commands(emulator), load=load)
    complete = options.runs >= FEWEST_RUNS and tuple(options.nodes) == NODES
    publish("gce", found, report.markdown(found), folder=options.results, complete=complete)
    return 0


if __name__ == "__main__":
    sys.exit(main())
