"""The server of warm.py, which has loaded modules and forks processes that begin with them.

`python -m tests.support.warm_server FOLDER CONTROL COMMANDS NODE TESTS`: the numbers of its sockets; it ends when the
other end of the first is closed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.forked import become

_Main = Callable[[list[str]], None]

# What commands load only when they need it.
_LIBRARIES = (
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
# What files of tests load besides. Not what has to be another in each process: the run in tests/support/nodes.py.
_OF_TESTS = (
    "execnet",
    "grimp",
    "hvdcloud.node.run.supervisor",
    "psutil",
    "pyte",
    "pytest",
    "tests.standins.compute",
    "tests.standins.storage",
    "tests.support.gce_bench",
    "tests.support.terminal",
    "tests.support.vanishing",
    "textual.pilot",
    "tools.reference",
)


def _load() -> None:
    import hvdcloud

    for name in _LIBRARIES:
        importlib.import_module(name)
    _import_below(hvdcloud, "hvdcloud.__main__", "hvdcloud.node.", "hvdcloud.templates", "hvdcloud.dockerfiles")
    from hvdcloud.cli.main import command_line

    command_line()
    _share_memory()


def _load_node() -> None:
    import hvdcloud.node

    for name in ("google_crc32c", "psutil"):
        importlib.import_module(name)
    _import_below(hvdcloud.node)
    _share_memory()


def _import_below(package: Any, *skipped: str) -> None:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(skipped):
            importlib.import_module(found.name)


def _share_memory() -> None:
    """A collection would write to memory that all processes share."""
    gc.collect()
    gc.freeze()


def _requests(listener: socket.socket, control: socket.socket) -> Iterator[tuple[socket.socket, Any, Sequence[int]]]:
    """Each request with its connection and file descriptors, which are closed after it."""
    while control not in select.select([listener, control], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            text, fds, _, _ = socket.recv_fds(connection, warm.MAX_REQUEST_BYTES, 4)
            if text:
                yield connection, json.loads(text), fds
        for fd in fds:
            os.close(fd)


# --- commands ---------------------------------------------------------------------------------------------------------


def _main(arguments: list[str]) -> None:
    from hvdcloud.cli.main import main

    try:
        main(arguments)
    except SystemExit as end:
        _end(int(end.code or 0))


def _main_of_node(arguments: list[str]) -> None:
    from hvdcloud.node.__main__ import main

    # Without any, what was called first was all that there was to do.
    _end(main(arguments) if arguments else 0)


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _serve_commands(listener: socket.socket, control: socket.socket, main: _Main) -> None:
    for connection, request, fds in _requests(listener, control):
        if os.fork() == 0:
            for end in (listener, control, connection):
                end.close()
            _watch(main, request, *fds)


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
        # `_end` has ended the process, unless an exception is on its way.
        traceback.print_exc()
        os._exit(1)


# --- processes of pytest-xdist ----------------------------------------------------------------------------------------


def _serve_tests(folder: Path, listener: socket.socket, control: socket.socket) -> None:
    """Returns in each process that it forks, and in this one at the end."""
    warm.use(folder)
    for connection, request, fds in _requests(listener, control):
        for name in _OF_TESTS:
            importlib.import_module(name)
        assert "tests.support.nodes" not in sys.modules, "all processes would have the same run"
        _share_memory()
        if os.fork() == 0:
            for end in (listener, control):
                end.close()
            _be_process_of_tests(request, fds)
            # What started it waits for the end of this connection.
            connection.detach()
            return


def _be_process_of_tests(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    for number, action in ((signal.SIGCHLD, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        signal.signal(number, action)
    become(request["cwd"], request["env"], streams)
    sys.argv[:] = ["-c"]
    sys.stdin = os.fdopen(0, closefd=False)
    # execnet's first line has it serve the others, to the end.
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


def main() -> None:
    """Serve the command line's sockets."""
    folder, *numbers = sys.argv[1:]
    control, commands, node, tests = (socket.socket(fileno=int(number)) for number in numbers)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.fork() == 0:
        commands.close()
        tests.close()
        _load_node()
        _serve_commands(node, control, _main_of_node)
        return
    node.close()
    _load()
    if os.fork():
        tests.close()
        _serve_commands(commands, control, _main)
    else:
        commands.close()
        _serve_tests(Path(folder), tests, control)


if __name__ == "__main__":
    main()
