"""horovodrun's place is taken by ours only where that is the same program."""

from __future__ import annotations

import base64
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.node.run import launcher
from tests.support.horovod_launcher import OURS, after_our_horovodrun

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


@pytest.fixture
def horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`horovod.runner`, after our horovodrun has begun."""
    yield from after_our_horovodrun(tmp_path, monkeypatch)


class Called:
    """What unpickles as a call."""

    def __init__(self, what: Callable[..., Any], *arguments: Any) -> None:
        self._call = what, arguments

    def __reduce__(self) -> Any:
        return self._call


def test_horovods_driver_understands_its_workers(horovod: Any) -> None:
    from horovod.runner.common.util import network
    from horovod.runner.elastic import rendezvous

    where = ({"eth0": [("10.0.0.2", 41234)]}, b"key")
    assert rendezvous.put(base64.b64encode(pickle.dumps(where, protocol=pickle.HIGHEST_PROTOCOL))) == where
    said = network.PingResponse("worker notification service")
    assert network.read(network.cloudpickle.dumps(said)).name == said.name


def test_horovods_driver_calls_nothing_that_a_worker_names(horovod: Any, tmp_path: Path) -> None:
    from horovod.runner.common.util import network
    from horovod.runner.elastic import rendezvous

    mark = tmp_path / "called"
    for attack in (
        Called(Path.touch, mark),
        Called(network.RunRequest, "called"),
        Called(eval, f"open({str(mark)!r}, 'w')"),
    ):
        data = pickle.dumps(attack)
        with pytest.raises(pickle.UnpicklingError):
            rendezvous.put(base64.b64encode(data))
        with pytest.raises(pickle.UnpicklingError):
            network.read(data)
    assert not mark.exists()


def test_horovodrun_starts_commands_itself_and_leaves_pythons_own_modules_alone(horovod: Any) -> None:
    from horovod.runner import gloo_run
    from horovod.runner.common.util import safe_shell_exec
    from horovod.runner.elastic import discovery

    assert gloo_run.safe_shell_exec is discovery.safe_shell_exec is not safe_shell_exec
    assert horovod.js_run.find_executable("sh") == shutil.which("sh")
    assert getattr(sys.modules.get("distutils.spawn"), "find_executable", None) is not shutil.which
