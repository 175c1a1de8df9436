"""`make demo`: its words, its folder, and that a second one loses nothing.

hvdcloud is a program here that makes its files.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "tools" / "demo.sh"
HVDCLOUD = """#!/bin/sh
set -e
echo "$1" >>calls
case $1 in
init) echo 'name: demo' >hvdcloud.yaml; echo 'next: hvdcloud launch' ;;
launch) run=2026112$(ls checkpoints 2>/dev/null | wc -l)-111045-d1ba2a; mkdir -p checkpoints/$run; echo $run >run ;;
report) : >"report-$(cat run).html" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hvdcloud").write_text(HVDCLOUD)
    (tmp_path / "bin/hvdcloud").chmod(0o755)
    return tmp_path / "my demo"


def demo(folder: Path) -> str:
    command = [DEMO, folder, folder.parent / "bin/hvdcloud"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_demo_says_what_happens_and_where_its_results_are(folder: Path) -> None:
    lines = demo(folder).splitlines()
    assert (folder / "calls").read_text().split() == ["init", "build", "launch", "report"]
    said = [line for line in lines if line.startswith("demo: ")]
    assert [line[6:12] for line in said if " of 4: " in line] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert max(map(len, said)) <= 80
    results = lines[lines.index("demo: done, and nothing runs any more; the results:") + 1 :][:2]
    assert [Path(result).relative_to(folder).parts[0] for result in results] == [
        "checkpoints",
        "report-20261120-111045-d1ba2a.html",
    ]
    assert all(Path(result).exists() for result in results)


def test_what_is_typed_next_works(folder: Path) -> None:
    following = [line.removeprefix("next: ") for line in demo(folder).splitlines() if line.startswith("next: ")]
    (folder / "calls").unlink()
    subprocess.run(["sh", "-ec", "\n".join(following)], check=True, cwd="/")
    assert (folder / "calls").read_text().split() == [shlex.split(line)[1] for line in following[1:]]
