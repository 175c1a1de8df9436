"""`hvdcloud` and the verbs of `hvdcloud-node` in processes that begin with their modules loaded.

Loading them takes most of a command's CPU time, 0.7 s, and 3 s with Google's library for Compute Engine; of a verb's,
four fifths. Every command and verb is still a process of its own, with its own environment, folder, streams and
signals: a server that has loaded the modules, and runs nothing else, forks it. In /proc it has the server's environment
and command line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, AnyStr

from tests.support.forked import become

_MAX_REQUEST_BYTES = 1 << 20
_Main = Callable[[list[str]], None]
# What commands load only when they need it.
_LIBRARIES = (
    "cyclonedx.output.json",
    "docker",
    "paramiko",
    "google.cloud.compute_v1",
    "google.cloud.storage",
    "google.oauth2.credentials",
    "netrc",
    "packaging.requirements",
    "pydantic.type_adapter",
    "tenacity",
)


class WarmPopen(subprocess.Popen[AnyStr]):
    """A process of `hvdcloud`, as subprocess.Popen starts one. `args` are the program's, without its name.

    Args:
        program: another one: `hvdcloud-node`.
        first: `MODULE:FUNCTION` that it calls before the command.
    """

    def __init__(self, args: Sequence[str], *, program: str = "hvdcloud", first: str = "", **options: Any) -> None:
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
                socket.send_fds(_server(self._program), [json.dumps(request).encode()], [stdin, stdout, stderr, status])
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


@functools.cache
def _server(program: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    words = [sys.executable, "-m", __name__, program, str(theirs.fileno())]
    process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait(timeout=80)

    return ours


# --- the server -------------------------------------------------------------------------------------------------------


def _load() -> None:
    import hvdcloud

    for name in _LIBRARIES:
        importlib.import_module(name)
    _import_below(hvdcloud, "hvdcloud.__main__", "hvdcloud.node.", "hvdcloud.templates", "hvdcloud.dockerfiles")
    from hvdcloud.cli.main import command_line

    command_line()


def _load_node() -> None:
    import hvdcloud.node

    for name in ("google_crc32c", "psutil"):
        importlib.import_module(name)
    # Those are programs of other Pythons.
    _import_below(hvdcloud.node, "hvdcloud.node.check.job.", "hvdcloud.node.run.launcher.horovodrun")


def _import_below(package: Any, *skipped: str) -> None:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(skipped):
            importlib.import_module(found.name)


def _main(arguments: list[str]) -> None:
    from hvdcloud.cli.main import main

    main(arguments)


def _main_of_node(arguments: list[str]) -> None:
    from hvdcloud.node.__main__ import main

    # Without any, what was called first was all that there was to do.
    code = main(arguments) if arguments else 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


_PROGRAMS = {"hvdcloud": (_load, _main), "hvdcloud-node": (_load_node, _main_of_node)}


def _serve(requests: socket.socket, main: _Main) -> None:
    while True:
        text, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
        if not text:
            return
        if os.fork() == 0:
            requests.close()
            _watch(main, json.loads(text), *fds)
        for fd in fds:
            os.close(fd)


def _watch(main: _Main, request: Mapping[str, Any], stdin: int, stdout: int, stderr: int, status: int) -> None:
    """Start the command, and write its pid and how it ended: the server itself waits for nobody."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child = os.fork()
        if not child:
            os.close(status)
            _run(main, request, stdin, stdout, stderr)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        os.write(status, b"%d\n" % child)
        os.write(status, b"%d\n" % os.waitpid(child, 0)[1])
    finally:
        os._exit(0)


def _run(main: _Main, request: Mapping[str, Any], *streams: int) -> None:
    try:
        if request["session"]:
            os.setsid()
        become(request["cwd"], request["env"], streams)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["first"]:
            module, _, function = request["first"].partition(":")
            getattr(importlib.import_module(module), function)()
        main(request["args"])
    finally:
        # main ends the process itself: here an exception is on its way.
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load, main = _PROGRAMS[sys.argv[1]]
    load()
    # A collection would write to memory that all processes share.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[2])) as requests:
        _serve(requests, main)
