"""`python -m tests.fuzz --seconds 60 [TARGET…]`: every target under atheris, one process for each core.

Coverage leads it to new input, which .cache/fuzz-corpus/ keeps for the next time. A finding is kept as a seed in
tests/fuzz/seeds/, where tests/unit/test_fuzz.py fails until it is fixed; exit code 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import SEEDS, TARGETS, seeds

CORPUS = Path(__file__).parents[2] / ".cache/fuzz-corpus"
SLOW_SECONDS = 10
_EXECUTIONS = re.compile(rb"stat::number_of_executed_units:\s+(\d+)")
_LONGEST = {"log": 1 << 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a target's process did."""

    target: str
    executions: int
    found: Path | None
    """The input that it ended with, as a seed."""
    said: str


def fuzz(name: str, *, seconds: int) -> Outcome:
    """Run one target's process to its end."""
    corpus, findings = CORPUS / name, CORPUS / f"{name}-findings"
    corpus.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(findings, ignore_errors=True)
    findings.mkdir(parents=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = {
        "max_total_time": seconds,
        "max_len": _LONGEST.get(name, 1 << 12),
        "timeout": SLOW_SECONDS,
        "rss_limit_mb": 2048,
        "print_final_stats": 1,
        "artifact_prefix": f"{findings}/",
    }
    argv = [sys.executable, "-m", "tests.fuzz.atheris_target", name, str(corpus)]
    done = subprocess.run(
        [*argv, *(f"-{key}={value}" for key, value in options.items())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds + 300,
    )
    executions = sum(map(int, _EXECUTIONS.findall(done.stdout)))
    found = None
    for file in findings.glob("*"):
        (SEEDS / name).mkdir(parents=True, exist_ok=True)
        found = Path(shutil.copy(file, SEEDS / name / file.name[:24]))
    failed = done.returncode != 0 or found is not None or not executions
    said = done.stdout.decode(errors="backslashreplace")[-3000:] if failed else ""
    return Outcome(target=name, executions=executions, found=found, said=said)


def main() -> int:
    """Fuzz; 1 where there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="of the whole; %(default)s")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all of them")
    arguments = parser.parse_args()
    names = arguments.targets or sorted(TARGETS)
    if unknown := set(names) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    cores = os.cpu_count() or 1
    each = max(2, arguments.seconds * min(cores, len(names)) // len(names))
    print(f"fuzz: {len(names)} targets, {each} s each", flush=True)
    outcomes = []
    with ThreadPoolExecutor(cores) as pool:
        for outcome in pool.map(lambda name: fuzz(name, seconds=each), names):
            print(f"fuzz: {outcome.target}: {outcome.executions:,} executions", flush=True)
            if outcome.said:
                print(f"{outcome.said}\nfuzz: {outcome.target}: kept as {outcome.found}", flush=True)
            outcomes.append(outcome)
    bad = [outcome.target for outcome in outcomes if outcome.said]
    total = sum(outcome.executions for outcome in outcomes)
    print(f"fuzz: {total:,} executions, " + (f"findings in {', '.join(bad)}" if bad else "no finding"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
