"""Providers without their start: one process that has everything imported, and forks for each that Terraform starts.

Terraform starts a provider three times for one plan, and importing gRPC takes longer than all that the provider does.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from tests.standins.terraform import provider
from tests.support.forked import become

# What the plumbing imports only when it starts.
_LATER = (
    "concurrent.futures.thread",
    "cryptography.hazmat.primitives.asymmetric.rsa",
    "cryptography.x509",
    "tf.gen.grpc_controller_pb2_grpc",
    "tf.gen.grpc_stdio_pb2_grpc",
)


def main(folder: Path) -> None:
    """Serve until standard input ends."""
    for name in _LATER:
        importlib.import_module(name)
    server = os.getpid()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(folder / "socket"))
            listening.listen(64)
            # Nobody waits for those that end.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
                connection, _ = listening.accept()
                if os.fork() == 0:
                    _provide(connection, folder)
                connection.close()
    finally:
        if os.getpid() == server:
            shutil.rmtree(folder, ignore_errors=True)


def _provide(connection: socket.socket, folder: Path) -> NoReturn:
    """Be the provider that a starter asked for, with its output, arguments and environment."""
    exit_code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        length, files, _, _ = socket.recv_fds(connection, 8, 3)
        with connection.makefile("rb") as reader:
            asked = json.loads(reader.read(int(length, 16)))
        # HOME: the plumbing keeps a certificate there, one for all.
        become(asked["folder"], {**asked["environment"], "HOME": str(folder)}, files)
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        provider.main(asked["arguments"])
        exit_code = 0
    except BaseException:  # In a process of its own, which ends here.
        traceback.print_exc()
    sys.stderr.flush()
    connection.send(bytes([exit_code]))
    os._exit(exit_code)


def _end_with(connection: socket.socket) -> None:
    """End when the starter does, which was killed."""
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
