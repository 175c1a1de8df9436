"""`python -m tests.bench.data`: a data set onto a node, against Google's own tools, in the same run.

A bucket on this machine with a latency per request and a rate per connection (object_server.py); the clock runs until
the bytes are on the disk (`sync`). Beside it `gcloud storage cp -r`, the transfer_manager of google-cloud-storage, what
the disk writes, and what a client takes that throws the bytes away (object_client.py). Each may use as many connections
as it likes. Medians of a few rounds, with all of them in each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from hvdcloud.node.data.sets import READY
from tests.bench.object_client import receive_all
from tests.bench.object_server import names_of
from tests.bench.publish import publish, say
from tests.support.data_node import PREFIX, DataNode

SHAPES = ((1, 4_000_000_000), (1000, 4_000_000), (10_000, 20_000), (100_000, 20_000))
"""Objects, and bytes of each."""
MANY = 1000
"""Shapes of more objects take minutes, and get one round."""
SMALLER = 10
LIMIT_SECONDS = 1800.0
_DISK_PIECE = random.Random(3).randbytes(1 << 20)
_POLL_SECONDS, _LOOK_SECONDS = 0.02, 0.5
_TRANSFER_MANAGER = """
import os, sys
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client, transfer_manager
url, folder = sys.argv[1:]
client = Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})
bucket = client.bucket("bucket")
blobs = list(client.list_blobs(bucket, prefix="set/"))
if len(blobs) == 1:
    os.makedirs(os.path.dirname(os.path.join(folder, blobs[0].name)))
    transfer_manager.download_chunks_concurrently(blobs[0], os.path.join(folder, blobs[0].name))
else:
    names = [blob.name for blob in blobs]
    transfer_manager.download_many_to_path(bucket, names, destination_directory=folder, raise_exception=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one shape, medians; seconds. None: it did not run.

    Attributes:
        nothing_kept: of a client that throws the bytes away.
        again: of a second fetch with nothing changed, as the node says it.
        memory: bytes at most.
    """

    count: int
    size: int
    rounds: int
    nothing_kept: float
    disk: float
    hvdcloud: float
    again: float
    memory: int
    gcloud: float | None = None
    transfer_manager: float | None = None

    @property
    def better(self) -> float | None:
        """Of the two others."""
        return min((each for each in (self.gcloud, self.transfer_manager) if each is not None), default=None)


def main(arguments: list[str]) -> int:
    """Run and publish; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.data", description=__doc__)
    parser.add_argument("--small", action="store_true", help=f"shapes of a {SMALLER}th, for a quick run")
    parser.add_argument("--rounds", type=int, default=3, help=f"of shapes with up to {MANY} objects")
    parser.add_argument("--peers-up-to", type=int, default=SHAPES[-1][0], help="objects that the others fetch at most")
    parser.add_argument("--latency", type=float, default=0.01, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes per second and connection")
    parser.add_argument("--disk", type=Path, help="folder to write to, on a disk of its own if there is one")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    results = []
    for count, size in SHAPES:
        shape = (1, size // SMALLER) if count == 1 else (count // SMALLER, size)
        with tempfile.TemporaryDirectory(prefix="hvdcloud-bench-data-", dir=options.disk) as folder:
            results.append(_measure(*(shape if options.small else (count, size)), Path(folder), options))
    document = {"latency": options.latency, "rate": options.rate, "small": options.small, "versions": _versions()}
    rows = {**document, "shapes": [asdict(each) for each in results]}
    publish("data", rows, _tables(results, options), folder=options.out, complete=not options.small)
    return 0


def _measure(count: int, size: int, folder: Path, options: argparse.Namespace) -> Result:
    say(f"{count} x {size} bytes")
    peers = count <= options.peers_up_to
    memory: list[int] = []
    rounds = []
    with _server(count, size, options) as url:
        for _ in range(1 if count > MANY else options.rounds):
            rounds.append(_round(count, size, folder, url, memory=memory, peers=peers))
            say("  " + ", ".join(f"{name} {value:.2f}" for name, value in rounds[-1].items()))
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return Result(count=count, size=size, rounds=len(rounds), memory=max(memory), **medians)


def _round(count: int, size: int, folder: Path, url: str, *, memory: list[int], peers: bool) -> dict[str, float]:
    """Seconds of each, by its name in Result."""
    found = {"nothing_kept": _timed(folder, lambda: receive_all(url, names_of(count), size))}
    found["disk"] = _timed(folder, lambda: _write(count, size, folder / "disk"))
    shutil.rmtree(folder / "disk")
    node = DataNode(folder / "node", url)
    found["hvdcloud"] = _timed(folder, lambda: _hvdcloud(node, count, memory))
    _hvdcloud(node, count, memory)
    found["again"] = node.states()[0].seconds
    shutil.rmtree(folder / "node")
    if peers:
        found["transfer_manager"] = _timed(folder, lambda: _transfer_manager(url, folder / "manager"))
        shutil.rmtree(folder / "manager")
    if peers and shutil.which("gcloud"):
        found["gcloud"] = _timed(folder, lambda: _gcloud(url, folder))
        shutil.rmtree(folder / "gcloud")
    return found


def _hvdcloud(node: DataNode, count: int, memory: list[int]) -> None:
    node.start(train=PREFIX)
    look_at = 0.0
    while node.at_work():
        # To read it takes time from what is measured.
        if time.monotonic() >= look_at:
            memory.append(node.memory())
            look_at = time.monotonic() + _LOOK_SECONDS
        time.sleep(_POLL_SECONDS)
    [state] = node.states()
    if state.phase != READY or state.files != count:
        raise RuntimeError(f"{state}")


@contextmanager
def _server(count: int, size: int, options: argparse.Namespace) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.bench.object_server", str(count), str(size)]
    command += ["--latency", str(options.latency), "--rate", str(options.rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


def _timed(folder: Path, work: Callable[[], object]) -> float:
    _sync(folder)
    began = time.monotonic()
    work()
    _sync(folder)
    return time.monotonic() - began


def _sync(folder: Path) -> None:
    """Write out what this disk has to: not what other programs have written to others."""
    subprocess.run(["sync", "--file-system", folder], check=True)


def _write(count: int, size: int, folder: Path) -> None:
    folder.mkdir()
    for number in range(count):
        with (folder / str(number)).open("wb", buffering=0) as file:
            for start in range(0, size, len(_DISK_PIECE)):
                file.write(_DISK_PIECE[: size - start])


def _transfer_manager(url: str, folder: Path) -> None:
    folder.mkdir()
    command = [sys.executable, "-c", _TRANSFER_MANAGER, url, str(folder)]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS)


def _gcloud(url: str, folder: Path) -> None:
    target = folder / "gcloud"
    target.mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CLOUDSDK_CONFIG": str(folder / "config"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{url}/storage/v1/",
    }
    command = ["gcloud", "storage", "cp", "--recursive", PREFIX, str(target)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"gcloud: {ended.stderr[-2000:]}")


def _tables(results: list[Result], options: argparse.Namespace) -> str:
    rate = f"{options.rate / 1e6:.0f} MB/s per connection, {options.latency * 1000:.0f} ms per request"
    scale = f", all shapes a {SMALLER}th of their size (`--small`)" if options.small else ""
    columns = ["objects", "nothing kept", "disk", "hvdcloud", "gcloud storage cp", "transfer_manager"]
    columns += ["x better peer", "of the disk", "memory", "unchanged"]
    lines = [
        "# A data set onto a node",
        "",
        f"`make bench-data` on {os.cpu_count()} cores, server and client together; {rate}{scale}. Seconds until",
        f"the bytes are on the disk, medians of {options.rounds} (one round above {MANY:,} objects). *nothing kept*: a",
        "client that throws the bytes away. *disk*: as many files written and synced, nothing fetched. *unchanged*: a",
        "second fetch.",
        "",
        f"{', '.join(f'{name} {number}' for name, number in _versions().items())}; {time.strftime('%Y-%m-%d')}.",
        "",
        f"| {' | '.join(columns)} |",
        f"| --- {'| ---: ' * (len(columns) - 1)}|",
    ]
    for each in results:
        cells = [f"{each.count:,} x {_size(each.size)}", f"{each.nothing_kept:.1f}", f"{each.disk:.1f}"]
        cells += [f"{each.hvdcloud:.1f}", _seconds(each.gcloud), _seconds(each.transfer_manager)]
        cells += [f"{each.better / each.hvdcloud:.1f}" if each.better else "", f"{each.disk / each.hvdcloud:.2f}"]
        cells += [f"{each.memory / 1e6:.0f} MB", f"{each.again:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _versions() -> dict[str, str]:
    """Of all that was compared."""
    found = {"Python": platform.python_version(), "google-cloud-storage": version("google-cloud-storage")}
    if shutil.which("gcloud"):
        said = subprocess.run(["gcloud", "version", "--format=json"], capture_output=True, text=True, check=True).stdout
        found["Google Cloud SDK"] = json.loads(said)["Google Cloud SDK"]
    return found


def _size(size: int) -> str:
    unit, name = next((each for each in ((1e9, "GB"), (1e6, "MB")) if size >= each[0]), (1e3, "kB"))
    return f"{size / unit:g} {name}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
