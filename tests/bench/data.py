"""`python -m tests.bench.data`: a data set onto a node, against Google's own tools, in the same run.

A bucket on this machine with a latency per request and a rate per connection (object_server.py); the clock runs until
the bytes are on the disk (`sync`). Beside it `gcloud storage cp -r`, the transfer_manager of google-cloud-storage, and
what the disk writes. Each may use as many connections as it likes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdcloud.node.data.sets import READY
from tests.bench.publish import publish, say
from tests.support.data_node import PREFIX, DataNode

SHAPES = ((1, 4_000_000_000), (1000, 4_000_000), (100_000, 20_000))
"""Objects, and bytes of each."""
SMALLER = 10
LIMIT_SECONDS = 1800.0
_DISK_PIECE = bytes(1 << 20)
_POLL_SECONDS = 0.05
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
    """Of one shape; seconds."""

    count: int
    size: int
    disk: float
    hvdcloud: float
    gcloud: float | None
    transfer_manager: float
    again: float
    memory: int

    @property
    def better(self) -> float:
        """Of the two others."""
        return min(each for each in (self.gcloud, self.transfer_manager) if each is not None)


def main(arguments: list[str]) -> int:
    """Run and publish; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.data", description=__doc__)
    parser.add_argument("--small", action="store_true", help=f"shapes of a {SMALLER}th, for a quick run")
    parser.add_argument("--latency", type=float, default=0.01, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes per second and connection")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    results = []
    for count, size in SHAPES:
        shape = (1, size // SMALLER) if count == 1 else (count // SMALLER, size)
        with tempfile.TemporaryDirectory(prefix="hvdcloud-bench-data-") as folder:
            results.append(_measure(*(shape if options.small else (count, size)), Path(folder), options))
    document = {"latency": options.latency, "rate": options.rate, "small": options.small}
    rows = {**document, "shapes": [asdict(each) for each in results]}
    publish("data", rows, _tables(results, options), folder=options.out, complete=True)
    return 0


def _measure(count: int, size: int, folder: Path, options: argparse.Namespace) -> Result:
    say(f"{count} x {size} bytes")
    with _server(count, size, options) as url:
        disk = _timed(lambda: _write(count, size, folder / "disk"))
        shutil.rmtree(folder / "disk")
        node = DataNode(folder / "node", url)
        most = 0

        def fetch() -> None:
            nonlocal most
            node.start(train=PREFIX)
            while node.at_work():
                most = max(most, node.memory())
                time.sleep(_POLL_SECONDS)
            [state] = node.states()
            if state.phase != READY or state.files != count:
                raise RuntimeError(f"{state}")

        ours = _timed(fetch)
        again = _timed(fetch)
        seconds = node.states()[0].seconds
        shutil.rmtree(folder / "node")
        manager = _timed(lambda: _transfer_manager(url, folder / "manager"))
        shutil.rmtree(folder / "manager")
        gcloud = _timed(lambda: _gcloud(url, folder)) if shutil.which("gcloud") else None
    say(
        f"  disk {disk:.1f}, hvdcloud {ours:.1f}, again {again:.2f} ({seconds:.2f}), transfer_manager {manager:.1f}, "
        f"gcloud {gcloud}"
    )
    return Result(
        count=count,
        size=size,
        disk=disk,
        hvdcloud=ours,
        gcloud=gcloud,
        transfer_manager=manager,
        again=seconds,
        memory=most,
    )


@contextmanager
def _server(count: int, size: int, options: argparse.Namespace) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.bench.object_server", str(count), str(size)]
    command += ["--latency", str(options.latency), "--rate", str(options.rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


def _timed(work: Callable[[], object]) -> float:
    os.sync()
    began = time.monotonic()
    work()
    os.sync()
    return time.monotonic() - began


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
    lines = [
        "# A data set onto a node",
        "",
        f"`make bench-data` on {os.cpu_count()} cores, server and client together; {rate}{scale}. Seconds until",
        "the bytes are on the disk. *disk* writes as many files of zeros and syncs; *unchanged* is a second fetch.",
        "",
        "| objects | disk | hvdcloud | gcloud storage cp | transfer_manager | x better peer | of the disk | memory |"
        " unchanged |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in results:
        gcloud = "not installed" if each.gcloud is None else f"{each.gcloud:.1f}"
        lines.append(
            f"| {each.count:,} x {each.size / 1e6:g} MB | {each.disk:.1f} | {each.hvdcloud:.1f} | {gcloud} "
            f"| {each.transfer_manager:.1f} | {each.better / each.hvdcloud:.2f} | {each.disk / each.hvdcloud:.2f} "
            f"| {each.memory / 1e6:.0f} MB | {each.again:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
