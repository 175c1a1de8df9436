"""`python -m tests.standins.compute --port PORT --credentials FILE`: serve until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.standins.compute.backing import Backing
from tests.standins.compute.records import BootDelays, Records
from tests.standins.compute.server import Emulator
from tests.standins.compute.state import Delays

_OPERATIONS = {field.name for field in fields(Delays)}
_BOOT = {field.name for field in fields(BootDelays)} - _OPERATIONS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.standins.compute", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind")
    parser.add_argument("--port", type=int, default=9024, help="0: any free port, printed on the first line")
    parser.add_argument("--project", default="test-project", help="the only project there is")
    parser.add_argument("--credentials", type=Path, help="write the service account's key there")
    parser.add_argument("--backing", choices=("records", "machines"), default="records")
    parser.add_argument("--time-scale", type=float, default=1.0, help="by which every maxRunDuration is multiplied")
    parser.add_argument("--page-size", type=int, default=500, help="most items of a page")
    parser.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="NAME=REGION=CIDR,…",
        type=_network,
        help="a VPC network beside `default`; repeatable",
    )
    parser.add_argument(
        "--delay",
        action="append",
        default=[],
        metavar="WHAT=SECONDS",
        type=_delay,
        help=f"repeatable; of an operation: {', '.join(sorted(_OPERATIONS))}; of a boot: {', '.join(sorted(_BOOT))}",
    )
    parser.add_argument(
        "--loopback-port",
        action="append",
        default=[],
        type=int,
        help="a port of this machine that every emulated one has at 127.0.0.1 too; with --backing machines; repeatable",
    )
    options = parser.parse_args()
    delays = dict(options.delay)
    boot = BootDelays(**{name: value for name, value in delays.items() if name in _BOOT})
    emulator = Emulator(
        project=options.project,
        host=options.host,
        port=options.port,
        backing=Records(boot) if options.backing == "records" else _machines(options.loopback_port),
        delays=Delays(**{name: value for name, value in delays.items() if name in _OPERATIONS}),
        time_scale=options.time_scale,
        networks=dict(options.network),
        page_size=options.page_size,
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.suppress(KeyboardInterrupt), emulator:
        if options.credentials:
            emulator.credentials_file(options.credentials)
        sys.stdout.write(f"{emulator.url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0


def _machines(ports: list[int]) -> Backing:
    from tests.standins.compute.machines import Machines

    return Machines(loopback_ports=ports)


def _delay(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    if name not in _OPERATIONS | _BOOT:
        raise argparse.ArgumentTypeError(f"no delay is called {name!r}")
    return name, float(seconds)


def _network(text: str) -> tuple[str, dict[str, str]]:
    name, _, ranges = text.partition("=")
    pairs: list[Any] = [part.partition("=") for part in ranges.split(",")]
    if not ranges or any(not cidr for _, _, cidr in pairs):
        raise argparse.ArgumentTypeError(f"NAME=REGION=CIDR,… expected, not {text!r}")
    return name, {region: cidr for region, _, cidr in pairs}


if __name__ == "__main__":
    sys.exit(main())
