"""`python -m tests.bench.data`: a data set onto a node, against Google's own tools, in the same run.

A bucket on this machine with a latency per request and a rate per connection (object_server.py); the clock runs until
the bytes are on the disk (`sync`). Beside it `gcloud storage cp -r`, the transfer_manager of google-cloud-storage, what
the disk writes, and what a client takes that throws the bytes away (object_client.py). Each may use as many connections
as it likes, and is stopped after a few times what hvdcloud took. Medians of a few rounds, with all of them in each.

Many small files come first, and are deleted at the end: ext4 gives out no inode that was deleted within minutes, and
looks at each of them for every file that is made, which took half of the time of whichever came next.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil

from hvdcloud.node.data.sets import READY
from tests.bench.object_client import receive_all
from tests.bench.object_server import names_of
from tests.bench.publish import publish, say
from tests.bench.workplace import HERE
from tests.support.data_node import PREFIX, DataNode

SHAPES = ((10_000, 20_000), (100_000, 20_000), (1, 4_000_000_000), (1000, 4_000_000))
"""Objects, and bytes of each."""
MANY = 1000
"""Shapes of more objects take minutes, get one round, and stay on the disk until the end."""
PATIENCE = 5.0
"""How many times the seconds of hvdcloud the others get."""
SMALLER = 10
_DISK_TASK = 16 << 20
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
    """Of one shape, medians; seconds. None: it did not run, or was stopped.

    Attributes:
        stopped: files that the others had when they were stopped, by their names.
        nothing_kept: of a client that throws the bytes away.
        again: of a second fetch with nothing changed, as the node says it.
        memory: bytes at most.
        disk: of as many files written by a process for each core, nothing fetched.
        both: of these two side by side, so of a client that has nothing to do but to receive and to write.
        processor: seconds of all processors, by the names of the other fields, with the server's and the kernel's.
        server: of those, the server's.
    """

    count: int
    size: int
    rounds: int
    nothing_kept: float
    disk: float
    both: float
    hvdcloud: float
    again: float
    memory: int
    gcloud: float | None = None
    transfer_manager: float | None = None
    stopped: dict[str, int] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)

    @property
    def better(self) -> float | None:
        """Of the two others."""
        return min((each for each in (self.gcloud, self.transfer_manager) if each is not None), default=None)


def main(arguments: list[str]) -> int:
    """Run and publish; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.data", description=__doc__)
    parser.add_argument("--small", action="store_true", help=f"shapes of a {SMALLER}th, for a quick run")
    parser.add_argument(
        "--only", type=int, metavar="COUNT", help="the shape of that many objects; the others' rows stay"
    )
    parser.add_argument("--rounds", type=int, default=3, help=f"of shapes with up to {MANY} objects")
    parser.add_argument("--latency", type=float, default=0.01, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes per second and connection")
    parser.add_argument("--disk", type=Path, help="folder to write to, on a disk of its own if there is one")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    results = _earlier(options)
    with tempfile.TemporaryDirectory(prefix="hvdcloud-bench-data-", dir=options.disk) as folder:
        for count, size in SHAPES:
            if options.only in (None, count):
                shape = (1, size // SMALLER) if count == 1 else (count // SMALLER, size)
                found = _measure(*(shape if options.small else (count, size)), Path(folder), options)
                results[found.count, found.size] = found
    ordered = [results[shape] for shape in sorted(results)]
    document = {"latency": options.latency, "rate": options.rate, "small": options.small, "versions": _versions()}
    rows = {**document, "shapes": [asdict(each) for each in ordered]}
    publish("data", rows, _tables(ordered, options), folder=options.out, complete=not options.small)
    return 0


def _earlier(options: argparse.Namespace) -> dict[tuple[int, int], Result]:
    """Of the results that are kept, by shape."""
    file = (options.out or HERE / "results") / "data.json"
    if options.only is None or options.small or not file.exists():
        return {}
    found = [Result(**each) for each in json.loads(file.read_text())["shapes"] if "both" in each]
    return {(each.count, each.size): each for each in found}


def _measure(count: int, size: int, folder: Path, options: argparse.Namespace) -> Result:
    say(f"{count} x {size} bytes")
    memory: list[int] = []
    stopped: dict[str, int] = {}
    rounds = []
    with _server(count, size, options) as server:
        for number in range(1 if count > MANY else options.rounds):
            place = folder / f"{count}-{number}"
            place.mkdir()
            rounds.append(_round(count, size, place, server, memory=memory, stopped=stopped))
            if count <= MANY:
                shutil.rmtree(place)
            say("  " + ", ".join(f"{name} {took.seconds:.2f}" for name, took in rounds[-1].items()))
    names = [name for name in rounds[0] if name not in stopped]

    def medians(value: Callable[[_Took], float]) -> dict[str, float]:
        return {name: round(statistics.median(value(each[name]) for each in rounds), 3) for name in names}

    return Result(
        count=count,
        size=size,
        rounds=len(rounds),
        memory=max(memory),
        stopped=stopped,
        processor=medians(lambda took: took.processor),
        server=medians(lambda took: took.server),
        **medians(lambda took: took.seconds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Took:
    """Seconds; `processor` and `server` as in Result."""

    seconds: float
    processor: float = 0.0
    server: float = 0.0


def _round(
    count: int, size: int, folder: Path, server: _Server, *, memory: list[int], stopped: dict[str, int]
) -> dict[str, _Took]:
    """What each took, by its name in Result; notes which ones were stopped."""
    names, url = names_of(count), server.url

    def timed(work: Callable[[], object]) -> _Took:
        _sync(folder)
        began, processor, of_server = time.monotonic(), _processor_seconds(), server.processor_seconds()
        work()
        _sync(folder)
        return _Took(
            seconds=time.monotonic() - began,
            processor=_processor_seconds() - processor,
            server=server.processor_seconds() - of_server,
        )

    def clear(name: str) -> None:
        if count <= MANY:
            shutil.rmtree(folder / name)

    found = {"nothing_kept": timed(lambda: receive_all(url, names, size))}
    found["disk"] = timed(lambda: _write(names, size, folder / "disk"))
    clear("disk")
    found["both"] = timed(lambda: _write(names, size, folder / "both", beside=lambda: receive_all(url, names, size)))
    clear("both")
    node = DataNode(folder / "node", url)
    found["hvdcloud"] = timed(lambda: _hvdcloud(node, count, memory))
    _hvdcloud(node, count, memory)
    found["again"] = _Took(seconds=node.states()[0].seconds)
    clear("node")
    peers: dict[str, Callable[[str, Path], tuple[list[str], dict[str, str]]]] = {"transfer_manager": _transfer_manager}
    if shutil.which("gcloud"):
        peers["gcloud"] = _gcloud

    def run(name: str) -> None:
        target = folder / name
        target.mkdir()
        command, environ = peers[name](url, target)
        left: list[int] = []
        patience = PATIENCE * found["hvdcloud"].seconds
        found[name] = timed(lambda: left.append(_stopped_at(command, environ, patience)))
        if left[0]:
            stopped[name] = sum(each.stat().st_size == size for each in target.rglob("object-*[0-9]"))
        clear(name)

    for name in peers:
        run(name)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """The bucket, and its processes."""

    url: str
    processes: list[psutil.Process]

    def processor_seconds(self) -> float:
        return sum(times.user + times.system for times in (each.cpu_times() for each in self.processes))


@contextmanager
def _server(count: int, size: int, options: argparse.Namespace) -> Iterator[_Server]:
    command = [sys.executable, "-m", "tests.bench.object_server", str(count), str(size)]
    command += ["--latency", str(options.latency), "--rate", str(options.rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().strip()
        yield _Server(url=url, processes=psutil.Process(server.pid).children())
        server.stdin.close()


def _processor_seconds() -> float:
    """Of all programs and the kernel on this machine."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _sync(folder: Path) -> None:
    """Write out what this disk has to: not what other programs have written to others."""
    subprocess.run(["sync", "--file-system", folder], check=True)


def _write(names: Sequence[str], size: int, folder: Path, *, beside: Callable[[], object] = lambda: None) -> None:
    """Files of these names, from as many processes as there are cores; `beside` is done meanwhile."""
    for each in {name.rpartition("/")[0] for name in names}:
        (folder / each).mkdir(parents=True)
    tasks = [(name, start) for name in names for start in range(0, size, _DISK_TASK)]
    share = -(-len(tasks) // (os.cpu_count() or 1))
    children = []
    for first in range(0, len(tasks), share):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _write_tasks(tasks[first : first + share], size, folder)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    beside()
    if any(os.waitpid(pid, 0)[1] for pid in children):
        raise RuntimeError("writing failed")


def _write_tasks(tasks: Sequence[tuple[str, int]], size: int, folder: Path) -> None:
    for name, start in tasks:
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o444 if size <= _DISK_TASK else 0o644)
        end = min(size, start + _DISK_TASK)
        for offset in range(start, end, len(_DISK_PIECE)):
            os.pwrite(descriptor, _DISK_PIECE[: end - offset], offset)
        os.close(descriptor)


def _stopped_at(command: list[str], environ: dict[str, str], seconds: float) -> bool:
    """Run one of the others with all its processes; returns whether it had to be stopped. Raises RuntimeError."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        if code != 0:
            raise RuntimeError(f"{command[0]}: {said.read()[-2000:]}")
    return False


def _transfer_manager(url: str, target: Path) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-c", _TRANSFER_MANAGER, url, str(target)], dict(os.environ)


def _gcloud(url: str, target: Path) -> tuple[list[str], dict[str, str]]:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(target.parent),
        "CLOUDSDK_CONFIG": str(target.parent / "config"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{url}/storage/v1/",
    }
    return ["gcloud", "storage", "cp", "--recursive", PREFIX, str(target)], environ


def _tables(results: list[Result], options: argparse.Namespace) -> str:
    rate = f"{options.rate / 1e6:.0f} MB/s per connection, {options.latency * 1000:.0f} ms per request"
    scale = f", all shapes a {SMALLER}th of their size (`--small`)" if options.small else ""
    columns = ["objects", "nothing kept", "disk", "both", "hvdcloud", "gcloud storage cp", "transfer_manager"]
    columns += ["x better peer", "of the disk", "of both", "memory", "unchanged"]
    lines = [
        "# A data set onto a node",
        "",
        f"`make bench-data` on {os.cpu_count()} cores, server and client together; {rate}{scale}. Seconds until",
        f"the bytes are on the disk, medians of {options.rounds} (one round above {MANY:,} objects). *nothing kept*: a",
        "client that throws the bytes away. *disk*: as many files written by a process for each core and synced,",
        "nothing fetched. *both*: these two side by side, with the server on the same cores. *unchanged*: once more.",
        f"The others are stopped after {PATIENCE:g} times what hvdcloud took; in parentheses, how many files they had.",
        "",
        f"{', '.join(f'{name} {number}' for name, number in _versions().items())}; {time.strftime('%Y-%m-%d')}.",
        "",
        f"| {' | '.join(columns)} |",
        f"| --- {'| ---: ' * (len(columns) - 1)}|",
    ]
    for each in results:
        cells = [f"{each.count:,} x {_size(each.size)}"]
        cells += [f"{value:.1f}" for value in (each.nothing_kept, each.disk, each.both, each.hvdcloud)]
        cells += [_peer(each, "gcloud"), _peer(each, "transfer_manager"), _times_better(each)]
        cells += [f"{value / each.hvdcloud:.2f}" for value in (each.disk, each.both)]
        cells += [f"{each.memory / 1e6:.0f} MB", f"{each.again:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_processor_table(results)]) + "\n"


def _processor_table(results: list[Result]) -> Iterator[str]:
    columns = ["objects", "server", "disk", "both", "hvdcloud", "gcloud storage cp", "transfer_manager"]
    yield ""
    yield "Seconds of all processors, as many in each second as there are cores. *server*: its part of what a fetch by"
    yield "hvdcloud takes. The others are all programs and the kernel together, without the part of the server."
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield f"| --- {'| ---: ' * (len(columns) - 1)}|"
    for each in results:
        if each.processor:
            cells = [f"{each.count:,} x {_size(each.size)}", f"{each.server['hvdcloud']:.1f}"]
            for name in ("disk", "both", "hvdcloud", "gcloud", "transfer_manager"):
                known = name in each.processor
                cells.append(f"{each.processor[name] - each.server[name]:.1f}" if known else "")
            yield f"| {' | '.join(cells)} |"


def _peer(result: Result, name: str) -> str:
    if name in result.stopped:
        return f"> {PATIENCE * result.hvdcloud:.0f} ({result.stopped[name]:,})"
    value: float | None = getattr(result, name)
    return "" if value is None else f"{value:.1f}"


def _times_better(result: Result) -> str:
    if result.better is not None:
        return f"{result.better / result.hvdcloud:.1f}"
    return f"> {PATIENCE:g}" if result.stopped else ""


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
