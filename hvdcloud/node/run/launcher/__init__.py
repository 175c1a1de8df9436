"""How horovodrun is started, and with what environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hvdcloud.node import paths
from hvdcloud.node.machine import image_environment
from hvdcloud.node.rank_user import RankUser

PROGRAM = "horovodrun"
SOCKETS_VARIABLE = "HVDCLOUD_SSH_SOCKETS"
"""Where horovodrun.py looks for connections that it may share; it passes it on to nobody."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "OPAL_PREFIX")
_MPI_SETTINGS = "OMPI_MCA_"
_DAEMON_NEEDS = ("PATH", "LD_LIBRARY_PATH", "OPAL_PREFIX")
_NEEDS_NO_QUOTES = re.compile(r"[\w./:@%+=,-]+")
_DEFAULT_PATH = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def launcher_argv(command: Sequence[str], *, path: str) -> list[str]:
    """The same command with our `horovodrun.py` in horovodrun's place, under the Python that horovodrun names.

    Args:
        path: where to look for horovodrun, as in `$PATH`.

    Returns:
        The command as it is, if it is not horovodrun or that is not a Python program.
    """
    if not command or command[0] != PROGRAM:
        return list(command)
    script = shutil.which(PROGRAM, path=path)
    if script is None:
        return list(command)
    with Path(script).open("rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    interpreter = first.removeprefix("#!").strip()
    if not first.startswith("#!") or "python" not in Path(interpreter).name or not Path(interpreter).is_file():
        return list(command)
    return [interpreter, str(Path(__file__).with_name("horovodrun.py")), *command[1:]]


def imported_by_launcher(path: str, user: RankUser) -> list[Path]:
    """horovodrun, its Python, and the folders from which that imports, all of which root runs; asked as the user, who
    could have changed them. `path`: where to look for horovodrun, as in `$PATH`."""
    script = shutil.which(PROGRAM, path=path)
    if script is None:
        return []
    interpreter = launcher_argv([PROGRAM], path=path)[0]
    if interpreter == PROGRAM:
        return [Path(script)]
    asked = user.command([interpreter, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"])
    answer = subprocess.run(asked, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    folders = [Path(line) for line in answer.stdout.splitlines() if line]
    return [Path(script), Path(interpreter), *(folder for folder in folders if folder.exists())]


def launcher_environment(run: str) -> dict[str, str]:
    """All that horovodrun gets to know: its Gloo launcher puts every value on ssh command lines."""
    image = image_environment()
    passed = {name: image[name] for name in image if name in _PASSED_ON or name.startswith(_MPI_SETTINGS)}
    # An image may have its Open MPI where sshd's sessions do not find it.
    daemon = [f"{name}={passed[name]}" for name in _DAEMON_NEEDS if _NEEDS_NO_QUOTES.fullmatch(passed.get(name, ""))]
    if paths.ROOT_VARIABLE in os.environ:
        passed[paths.ROOT_VARIABLE] = os.environ[paths.ROOT_VARIABLE]
    return {
        "PATH": _DEFAULT_PATH,
        "LANG": "C.UTF-8",
        **passed,
        "HOME": str(paths.root() / "root"),
        "PYTHONUNBUFFERED": "1",
        paths.RUN_VARIABLE: run,
        # Open MPI's daemon on the other nodes, started over ssh, has no other mark of belonging to this run.
        "OMPI_MCA_orte_launch_agent": " ".join(["env", f"{paths.RUN_VARIABLE}={run}", *daemon, "orted"]),
    }
