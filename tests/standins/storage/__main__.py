"""`python -m tests.standins.storage --port PORT --folder DIR`: serve until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from tests.standins.storage.server import StorageServer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.standins.storage", description=__doc__)
    parser.add_argument("--port", type=int, default=9023, help="0: any free port, printed on the first line")
    parser.add_argument("--folder", type=Path, required=True, help="where objects are kept; survives restarts")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket if it is not there; repeatable")
    parser.add_argument("--no-md5", action="store_true", help="serve no MD5, as for composite objects; faster")
    options = parser.parse_args()
    server = StorageServer(folder=options.folder, port=options.port, md5=not options.no_md5)
    for bucket in options.bucket:
        server.store.make_bucket(bucket, exist_ok=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
