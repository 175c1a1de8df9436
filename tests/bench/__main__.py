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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.bench.measure import BenchError, Sample, output, run
from tests.bench.publish import HERE, JOB, ends_in_words, publish, say, table
from tests.support.harness import HVDCLOUD

FEWEST_RUNS = 5
"""Fewer rounds do not replace the results that are committed."""
BUILD_SECONDS = 3600
ANSWER = "2 ranks summed"
"""What the job has to print."""
CHECKPOINT_BYTES = 100_000
TITLES: Mapping[str, str] = {
    "floor": "by hand: shell, docker and horovodrun",
    "launch": "`hvdcloud launch`, launcher horovod",
    "torchx": "`torchx run -s local_docker dist.ddp -j 2x1`",
    "torchrun": "`hvdcloud launch`, launcher torchrun",
}
TORCHX = Path(__file__).resolve().parents[2] / ".cache" / "bench" / "bin" / "torchx"


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


def by_torchx(image: str, folder: Path) -> Sample:
    """The same job under TorchX, which leaves its containers behind: they are removed after the clock has stopped."""
    mount = f"type=bind,src={JOB},dst=/bench,readonly"
    words = ["dist.ddp", "-j", "2x1", "--image", image, "--script", "/bench/ddp.py", "--mounts", mount]
    sample = run([TORCHX, "run", "--wait", "--log", "--scheduler", "local_docker", *words], cwd=folder)
    if left := output("docker", "ps", "--all", "--quiet", "--filter", f"ancestor={image}").split():
        output("docker", "rm", "--force", *left)
    return sample


def project_of(folder: Path, name: str, job: str, **run_section: str) -> Path:
    """A project that launches one of the jobs on two nodes."""
    project = folder / name
    project.mkdir()
    shutil.copy(JOB / job, project)
    section = {"command": f"python {job}", **run_section}
    config = {"name": name, "nodes": 2, "image": {"requirements": None}, "run": section}
    (project / "hvdcloud.yaml").write_text(json.dumps(config))
    return project


def image_of(project: Path, environ: Mapping[str, str]) -> str:
    """The image of a project, built if it is not there."""
    built = run([*HVDCLOUD, "build", "--json"], cwd=project, env=environ, limit=BUILD_SECONDS).out
    return str(json.loads(built)["result"]["reference"])


def measure(folder: Path, *, runs: int) -> dict[str, list[float]]:
    """Seconds of each in every round; the first round only warms up, and who begins changes by the round."""
    name = f"t-bench-{secrets.token_hex(3)}"
    environ = {"HVDCLOUD_STATE_DIR": str(folder / "state"), "TMPDIR": str(folder)}
    project = project_of(folder, name, "allreduce.py")
    ddp = project_of(folder, f"{name}-ddp", "ddp.py", launcher="torchrun")
    say("building the images, if they are not there")
    image, plain = image_of(project, environ), image_of(ddp, environ)
    # TorchX starts what it is told as the image's arguments.
    for_torchx = f"hvdcloud-bench/torchx:{secrets.token_hex(3)}"
    (folder / "Dockerfile").write_text(f"FROM {plain}\nENTRYPOINT []\n")
    run(["docker", "build", "--tag", for_torchx, "--file", folder / "Dockerfile", JOB])
    ways = {
        "floor": lambda: run(["bash", HERE / "floor.sh", image, f"{name}-floor"], env=environ),
        "launch": lambda: launched(project, name, environ),
        "torchx": lambda: by_torchx(for_torchx, folder),
        "torchrun": lambda: launched(ddp, f"{name}-ddp", environ),
    }
    try:
        return rounds(ways, runs=runs)
    finally:
        output("docker", "rmi", for_torchx)


def rounds(ways: Mapping[str, Callable[[], Sample]], *, runs: int) -> dict[str, list[float]]:
    """Do each of them in every round, beginning with another end each time. Returns the seconds of each."""
    found: dict[str, list[float]] = {key: [] for key in ways}
    for turn in range(runs + 1):
        for key in list(ways) if turn % 2 else reversed(list(ways)):
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
    median = {key: statistics.median(each) for key, each in found.items()}
    pairs = (("launch", "floor"), ("torchrun", "torchx"))
    ratios = [f"- {TITLES[one]} takes {median[one] / median[other]:.2f} of {TITLES[other]}" for one, other in pairs]
    columns = ["two nodes, one all-reduce job", "median", "least", "most"]
    return f"{table(columns, rows)}\n\n{chr(10).join(ratios)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 5)")
    parser.add_argument("--results", type=Path, help="folder for launch.json and launch.md")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    # A `kill` is handled as Ctrl-C is: everything is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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


if __name__ == "__main__":
    sys.exit(main())
