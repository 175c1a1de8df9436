"""`python -m tests.bench`: how long `hvdcloud launch` takes, beside the same job started by hand (see README.md)."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from tests.bench.measure import BenchError, Sample, output, run
from tests.bench.publish import HERE, JOB, ends_in_words, publish, say, table
from tests.support.harness import HVDCLOUD

FEWEST_RUNS = 5
"""Fewer rounds do not replace the results that are committed."""
BUILD_SECONDS = 3600
ANSWER = "2 ranks summed"
"""What the job has to print."""
CHECKPOINT_BYTES = 100_000
TITLES: Mapping[str, str] = {"floor": "by hand: shell and docker", "launch": "`hvdcloud launch`"}


def launched(folder: Path, name: str, environ: Mapping[str, str]) -> Sample:
    """One `hvdcloud launch`, which leaves one more checkpoint on this disk and nothing on the engine."""
    sample = run([*HVDCLOUD, "launch"], cwd=folder, env=environ)
    found = list((folder / "checkpoints").glob("*/numbers.pt"))
    if not found or any(file.stat().st_size < CHECKPOINT_BYTES for file in found):
        raise BenchError(f"{name}: the run left no checkpoint on this disk")
    shutil.rmtree(folder / "checkpoints")
    for kind in (["ps", "--all"], ["network", "ls"], ["volume", "ls"]):
        if left := output("docker", *kind, "--quiet", "--filter", f"label=hvdcloud-cluster={name}"):
            raise BenchError(f"{name}: `docker {kind[0]}` still shows {left}")
    return sample


def measure(folder: Path, *, runs: int) -> dict[str, list[float]]:
    """Seconds of each in every round; the first round only warms up, and who begins changes by the round."""
    name = f"t-bench-{secrets.token_hex(3)}"
    project = folder / name
    project.mkdir()
    environ = {"HVDCLOUD_STATE_DIR": str(folder / "state"), "TMPDIR": str(folder)}
    shutil.copy(JOB / "allreduce.py", project)
    config = {
        "name": name,
        "nodes": 2,
        "image": {"requirements": None},
        "run": {"command": "python allreduce.py"},
    }
    (project / "hvdcloud.yaml").write_text(json.dumps(config))
    say("building the image, if it is not there")
    built = run([*HVDCLOUD, "build", "--json"], cwd=project, env=environ, limit=BUILD_SECONDS).out
    image = json.loads(built)["result"]["reference"]
    ways = {
        "floor": lambda: run(["bash", HERE / "floor.sh", image, f"{name}-floor"], env=environ),
        "launch": lambda: launched(project, name, environ),
    }
    found: dict[str, list[float]] = {key: [] for key in ways}
    for turn in range(runs + 1):
        for key in list(ways) if turn % 2 else reversed(ways):
            sample = ways[key]()
            if ANSWER not in sample.text:
                raise BenchError(f"{TITLES[key]}: the job did not say `{ANSWER} …`:\n{sample.text}")
            say(f"round {turn}/{runs}: {TITLES[key]}: {sample.seconds:.2f} s")
            if turn:
                found[key].append(sample.seconds)
    return found


def tables(found: Mapping[str, Sequence[float]]) -> str:
    """As Markdown."""
    rows = [
        [TITLES[key], *(f"{value:.2f} s" for value in (statistics.median(each), min(each), max(each)))]
        for key, each in found.items()
    ]
    return f"{table(['two nodes, one all-reduce job', 'median', 'least', 'most'], rows)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 5)")
    parser.add_argument("--results", type=Path, help="folder for launch.json and launch.md")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    # A `kill` is handled as Ctrl-C is: everything is removed.
    signal.signal(signal.SIGTERM, _interrupt)
    load = os.getloadavg()[0]
    if not output("docker", "version", "--format", "{{.Server.Version}}"):
        say("bench: no Docker engine answers; `make engine` starts one")
        return 1
    temporary = tempfile.TemporaryDirectory(prefix="hvdcloud-bench-", ignore_cleanup_errors=True)
    with ends_in_words(), temporary as folder:
        found = measure(Path(folder), runs=options.runs)
    document = {"load": load, "cpus": os.cpu_count(), "seconds": found}
    publish("launch", document, tables(found), folder=options.results, complete=options.runs >= FEWEST_RUNS)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
