"""horovodrun's place is taken by ours only where that is the same program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvdcloud.node.run import launcher

OURS = str(Path(launcher.__file__).with_name("horovodrun.py"))
ARGUMENTS = ["--gloo", "-np", "2"]


def install(folder: Path, text: str) -> str:
    script = folder / "horovodrun"
    script.write_text(text)
    script.chmod(0o755)
    return str(folder)


def test_a_python_horovodrun_is_run_under_its_own_python(tmp_path: Path) -> None:
    path = install(tmp_path, f"#!{sys.executable}\nimport sys\n")
    assert launcher.launcher_argv(["horovodrun", *ARGUMENTS], path=path) == [sys.executable, OURS, *ARGUMENTS]


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 0\n", "\x7fELF", "", "#!/nowhere/python3\n"])
def test_any_other_horovodrun_is_left_alone(tmp_path: Path, text: str) -> None:
    path = install(tmp_path, text)
    assert launcher.launcher_argv(["horovodrun", *ARGUMENTS], path=path) == ["horovodrun", *ARGUMENTS]


def test_a_missing_horovodrun_and_other_programs_are_left_alone(tmp_path: Path) -> None:
    assert launcher.launcher_argv(["horovodrun"], path=str(tmp_path)) == ["horovodrun"]
    assert launcher.launcher_argv(["mpirun", "-np", "2"], path=str(tmp_path)) == ["mpirun", "-np", "2"]
    assert launcher.launcher_argv([], path=str(tmp_path)) == []
