"""What starts the ranks of a run: with what command and environment, and the process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hvdcloud.node import paths
from hvdcloud.node.machine import image_environment
from hvdcloud.node.mesh.ssh import NODE_PROGRAM
from hvdcloud.node.records.spec import Spec

PROGRAM = "horovodrun"
LAUNCH_AGENT = "OMPI_MCA_orte_launch_agent"
"""How mpirun starts its daemon on other nodes; nothing for ranks."""
_READ_SIZE = 1 << 18
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
    script = shutil.which(PROGRAM, path=path) if list(command[:1]) == [PROGRAM] else None
    if script is None:
        return list(command)
    with Path(script).open("rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    interpreter = first.removeprefix("#!").strip()
    if not first.startswith("#!") or "python" not in Path(interpreter).name or not Path(interpreter).is_file():
        return list(command)
    return [interpreter, str(Path(__file__).with_name("horovodrun.py")), *command[1:]]


def launcher_environment(run: str) -> dict[str, str]:
    """All that a launcher gets to know: horovodrun puts every value on ssh command lines."""
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
        LAUNCH_AGENT: " ".join(["env", f"{paths.RUN_VARIABLE}={run}", *daemon, "orted"]),
    }


class Launcher:
    """The launcher of a run, and the pipe to which it and all ranks write."""

    def __init__(self, spec: Spec) -> None:
        self._run = spec.run
        self._command = spec.horovodrun
        self._process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        """Its exit code; None: it is not known to have ended."""
        self.output_fd = -1
        self.output_open = False

    def start(self) -> None:
        """Start it, also once more after it has ended. Raises OSError: it cannot be started."""
        self.forget()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        try:
            environment = launcher_environment(self._run)
            argv = [NODE_PROGRAM, "every-node", self._run]
            if self._command:
                argv = [*launcher_argv(self._command, path=environment["PATH"]), NODE_PROGRAM, "rank", self._run]
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=environment,
                cwd=paths.workspace(),
                start_new_session=True,
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.output_fd, self.output_open = reader, True

    @property
    def runs(self) -> bool:
        """Whether it was started, and is not known to have ended."""
        return self._process is not None and self.code is None

    def poll(self) -> None:
        """Find out whether it has ended."""
        if self._process is not None and self.code is None:
            self.code = self._process.poll()

    def forget(self) -> None:
        """Take it as not started."""
        self._process = self.code = None

    def signal(self, number: int, *, rest: bool = False) -> None:
        """Send a signal to it and to what it has started here. `rest`: to what is left of that too, when it has ended
        itself."""
        if self._process is not None and (self.code is None or rest):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def read(self) -> bytes | None:
        """What was written; empty at the end of the pipe, None: nothing yet."""
        try:
            return os.read(self.output_fd, _READ_SIZE)
        except BlockingIOError:
            return None

    def close_output(self) -> None:
        os.close(self.output_fd)
        self.output_open = False
