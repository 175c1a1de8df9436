"""`python -m tests.mutants [NAME…]`: damage a copy of the package, and see that the tests notice."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.publish import say
from tests.mutants import REPOSITORY, Mutant, load

AT_ONCE = 2
ENOUGH = 0.95
TEST_SECONDS = 120
"""A test that hangs has noticed."""
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.whl")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only the mutants whose name contains one of these")
    options = parser.parse_args()
    mutants = [m for m in load() if not options.names or any(name in m.name for name in options.names)]
    if not mutants:
        parser.error("there is no such mutant")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    status, output = _pytest(tests, mutant=None)
    if status != 0:
        say(f"{output}\nthe tests fail without any mutation")
        return 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = []
        for mutant, outcome in zip(mutants, pool.map(_try, mutants), strict=True):
            outcomes.append(outcome)
            say(f"{outcome:15}{mutant.name}")
    counts = Counter(outcomes)
    say(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        if outcome != "killed":
            say(f"{outcome}: {mutant.name} ({mutant.file})")
    judged = counts["killed"] + counts["survived"]
    return 0 if judged == len(mutants) and counts["killed"] >= ENOUGH * judged else 1


def _try(mutant: Mutant) -> str:
    if mutant.patched(REPOSITORY) is None:
        return "does not apply"
    # pytest's exit status: 1 where a test failed, anything above where it could not run them.
    return {0: "survived", 1: "killed"}.get(_pytest(mutant.tests, mutant=mutant)[0], "broken")


def _pytest(tests: list[str] | tuple[str, ...], *, mutant: Mutant | None) -> tuple[int, str]:
    """Run tests in a copy of the repository, with the patch; returns pytest's exit status and output."""
    with tempfile.TemporaryDirectory(prefix="hvdcloud-mutant-") as folder:
        root = Path(folder, "copy")
        shutil.copytree(REPOSITORY, root, ignore=_NOT_COPIED, symlinks=True)
        if mutant is not None:
            (root / mutant.file).write_text(mutant.patched(root) or "", encoding="utf-8")
        # No engine: a damaged package must not touch one.
        environment = {**os.environ, "PYTHONPATH": str(root), "DOCKER_HOST": f"unix://{folder}/no-engine"}
        arguments = ["-q", "-x", "-p", "no:cacheprovider"]
        arguments += [f"--timeout={TEST_SECONDS}", f"--basetemp={folder}/tests"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, *tests],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
