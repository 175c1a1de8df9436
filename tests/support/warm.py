"""`hvdcloud`, verbs of `hvdcloud-node` and processes of pytest-xdist, as processes whose modules are loaded already.

Loading them takes most of a command's CPU time, 0.7 s, and 3 s with Google's library for Compute Engine; of a verb's,
four fifths. Every command and verb is still a process of its own, with its own environment, folder, streams and
signals: a server that has loaded the modules, and runs nothing else, forks it (tests/support/warm_server.py). In /proc
it has the server's environment and command line. A session of tests has one server.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, AnyStr

MAX_REQUEST_BYTES = 1 << 20
COMMANDS, NODE, TESTS = "hvdcloud", "hvdcloud-node", "tests"
"""The server's sockets, in its folder."""
_ROOT = Path(__file__).parents[2]
_of_session: Path | None = None


class WarmPopen(subprocess.Popen[AnyStr]):
    """A process of `hvdcloud`, as subprocess.Popen starts one. `args` are the program's, without its name.

    Args:
        program: COMMANDS or NODE.
        first: `MODULE:FUNCTION` that it calls before the command.
    """

    def __init__(self, args: Sequence[str], *, program: str = COMMANDS, first: str = "", **options: Any) -> None:
        self._program = program
        self._first = first
        super().__init__(args, **options)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        # As subprocess.Popen calls it: …, cwd, env, …, six ends of pipes, restore_signals, gid, gids, uid, umask,
        # start_new_session, and from Python 3.11 on process_group.
        cwd, env = rest[4:6]
        ends = rest[9:15]
        stdin, stdout, stderr = ends[0], ends[3], ends[5]
        words = [str(each) for each in args]
        request = {"args": words, "cwd": str(cwd), "env": dict(env), "session": rest[20], "first": self._first}
        try:
            self._status, status = os.pipe()
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
                    server.connect(str(_server() / self._program))
                    socket.send_fds(server, [json.dumps(request).encode()], [stdin, stdout, stderr, status])
            finally:
                os.close(status)
            self.pid = int(self._line())
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            if not (byte := os.read(self._status, 1)):
                raise ChildProcessError(f"the server that starts {self._program} has ended")
            line += byte
        return line.decode()

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        ended = int(self._line())
        os.close(self._status)
        return self.pid, ended

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        # As the original: where another thread waits, nothing is known yet.
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def python_of_tests() -> str:
    """What execnet starts in place of Python, for a process of pytest-xdist."""
    return shlex.join([sys.executable, "-IS", str(_ROOT / "tests/support/warm_starter.py"), str(_server() / TESTS)])


def use(folder: Path) -> None:
    """Have this process's commands forked by the server with its sockets in the folder."""
    global _of_session
    _of_session = folder


def _server() -> Path:
    return _of_session or _own_server()


@functools.cache
def _own_server() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hvdcloud-warm-"))
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        ends = [stack.enter_context(theirs)]
        for name in (COMMANDS, NODE, TESTS):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(str(folder / name))
            # Whoever asks while it loads modules waits.
            listener.listen(128)
            ends.append(listener)
        numbers = [end.fileno() for end in ends]
        program = [sys.executable, "-m", "tests.support.warm_server", str(folder), *map(str, numbers)]
        process = subprocess.Popen(program, cwd=_ROOT, pass_fds=numbers, stdin=subprocess.DEVNULL)

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait(timeout=80)
        shutil.rmtree(folder)

    return folder
