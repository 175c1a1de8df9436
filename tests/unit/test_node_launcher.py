"""horovodrun's place is taken by ours only where that is the same program."""

from __future__ import annotations

import base64
import pickle
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


# As much of Horovod as horovodrun.py touches. What a module calls pickle is where the real one has cloudpickle.
HOROVOD = {
    "runner/launch.py": "gloo_built = mpi_built = None\ndef run_commandline():\n    pass\n",
    "runner/driver/driver_service.py": "get_local_interfaces = None\n",
    "runner/common/util/codec.py": "import base64, pickle\n"
    "def loads_base64(text):\n    return pickle.loads(base64.b64decode(text))\n",
    "runner/common/util/network.py": "import pickle as cloudpickle, shutil\n"
    "def RunRequest(text):\n    raise AssertionError(text)\n"
    "class PingResponse:\n    def __init__(self, name):\n        self.name = name\n"
    "def read(data):\n    return cloudpickle.loads(data)\n",
    "runner/elastic/rendezvous.py": "from horovod.runner.common.util import codec\n"
    "def put(value):\n    return codec.loads_base64(value)\n",
}


@pytest.fixture
def horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`horovod.runner`, after our horovodrun has begun."""
    for name, text in HOROVOD.items():
        file = tmp_path / "horovod" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for folder in [tmp_path / "horovod", *(tmp_path / "horovod").rglob("*/")]:
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    runpy.run_path(OURS, run_name="__main__")
    yield sys.modules["horovod.runner"]
    for name in [each for each in sys.modules if each.partition(".")[0] == "horovod"]:
        del sys.modules[name]


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
