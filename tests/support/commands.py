"""`hvdcloud` as processes that begin with its modules loaded, which is most of what a command takes of a processor.

Each command is a process of its own, with its own environment, folder, streams and signals: Python's forkserver has
loaded the modules once and forks it. In /proc it has the server's environment and command line.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO

LOADED = ("docker", "paramiko", "google.cloud.compute_v1", "google.cloud.storage", "google.oauth2.credentials")
"""What commands load only when they need it."""
_ONE_THREAD = threading.Lock()
"""multiprocessing reads how a process ended once, and looks at all of them whenever one starts."""


class Command:
    """A command that runs; what tests use of subprocess.Popen, with standard input empty.

    Args:
        words: of the command line, without the program.
        stdout, stderr: files that it writes to; without the first, `stdout` is a pipe, without the second, standard
            error goes where standard output does.
        first: `MODULE:FUNCTION` that is called in its process before anything else.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        session: bool = False,
        first: str = "",
    ) -> None:
        reader = -1
        with contextlib.ExitStack() as stack:
            empty = stack.enter_context(Connection(os.open(os.devnull, os.O_RDWR)))
            if stdout is None:
                reader, writer = os.pipe()
            else:
                writer = os.dup(stdout.fileno())
            out = stack.enter_context(Connection(writer))
            err = out if stderr is None else stack.enter_context(Connection(os.dup(stderr.fileno())))
            self.args = tuple(map(str, words))
            arguments = (self.args, str(cwd), dict(env), (empty, out, err), session, first)
            self._process = _server().Process(target=_be, args=arguments)
            with _ONE_THREAD:
                self._process.start()
        self.stdout = None if reader < 0 else os.fdopen(reader, errors="replace", encoding="utf-8")
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """None: it runs. Negative: the signal that ended it."""
        with _ONE_THREAD:
            return self._process.exitcode

    def poll(self) -> int | None:
        """See `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired: it runs on."""
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.returncode
        assert code is not None
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it still prints, once it has ended."""
        self.wait(timeout)
        text = self.stdout.read() if self.stdout is not None and not self.stdout.closed else ""
        return text, None

    def send_signal(self, number: int) -> None:
        """To this process; nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__name__}_loaded"])
    return context


def load() -> None:
    """Load what commands use. The forkserver calls it, by commands_loaded.py."""
    import hvdcloud
    from hvdcloud.cli.main import command_line

    for name in LOADED:
        importlib.import_module(name)
    skipped = ("hvdcloud.__main__", "hvdcloud.node.", "hvdcloud.templates", "hvdcloud.dockerfiles")
    for found in pkgutil.walk_packages(hvdcloud.__path__, "hvdcloud."):
        if not found.name.startswith(skipped):
            importlib.import_module(found.name)
    command_line()


def _be(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[Connection],
    session: bool,
    first: str,
) -> None:
    """What the process does in place of starting another program."""
    if session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    for stream in streams:
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from hvdcloud.cli.main import main

    if first:
        module, _, function = first.partition(":")
        getattr(importlib.import_module(module), function)()
    main(list(words))
