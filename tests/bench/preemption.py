"""`python -m tests.bench.preemption`: from a preemption notice to the last byte in the bucket.

A real agent, with a metadata server and a bucket on this machine: checkpoints are written, the notice comes at once,
and the clock runs until all of them can be read from the bucket. Beside it, in the same round and with as many bytes,
the floor: Google's own `upload_from_filename`, in a process that has its client ready, or a plain copy for a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.publish import publish, say
from tests.standins.metadata.preemption import Notices, notices
from tests.standins.storage import running_server
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, node_cluster

MB = 1_000_000
SIZES = (10, 100, 1000)
"""MB of checkpoints."""
FILES = 2
"""Of which they are made: a model and an optimizer, say."""
FEWEST_RUNS = 5
"""Fewer do not replace the results that are committed."""
LIMIT_SECONDS = 120.0
NOTICE_SECONDS = 30
_POLL_SECONDS = 0.002
TRAINS = "import time; print('at work', flush=True); time.sleep(3600)"


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of bucket.

    Attributes:
        spec: what the run's description says of it.
        names: what is in it, whole, by the last part of its name.
        floor: puts files there the plain way.
        clear: removes everything in it.
    """

    spec: Mapping[str, Any]
    names: Callable[[], set[str]]
    floor: Callable[[Sequence[Path]], None]
    clear: Callable[[], None]


@contextmanager
def folder_bucket(base: Path) -> Iterator[Place]:
    """A file:// bucket; the floor is a copy."""
    bucket, plain = base / "bucket", base / "plain"
    for folder in (bucket, plain):
        folder.mkdir(exist_ok=True)

    def names() -> set[str]:
        # A file gets its name when it is whole.
        return {path.name for path in bucket.rglob("*")}

    def floor(files: Sequence[Path]) -> None:
        for file in files:
            shutil.copyfile(file, plain / file.name)

    def clear() -> None:
        for folder in (bucket, plain):
            shutil.rmtree(folder)
            folder.mkdir()

    yield Place({"bucket": bucket.as_uri(), "bucket_endpoint": None}, names, floor, clear)


@contextmanager
def storage_bucket(base: Path) -> Iterator[Place]:
    """A gs:// bucket at the stand-in of Cloud Storage; the floor is Google's client."""
    with running_server(base / "storage", buckets=("bucket", "plain"), md5=False) as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        from google.cloud import storage

        client = storage.Client(project="bench")

        def names() -> set[str]:
            return {name.rpartition("/")[2] for name in list(server.store.bucket("bucket").names)}

        def floor(files: Sequence[Path]) -> None:
            for file in files:
                client.bucket("plain").blob(file.name).upload_from_filename(str(file))

        def clear() -> None:
            for name in ("bucket", "plain"):
                for blob in list(client.list_blobs(name)):
                    blob.delete()

        yield Place({"bucket": "gs://bucket/runs", "bucket_endpoint": server.url}, names, floor, clear)


def write(folder: Path, megabytes: int) -> list[Path]:
    """Checkpoints that are whole when this returns."""
    files = []
    block = os.urandom(MB)
    for number in range(FILES):
        path = folder / f"checkpoint-{number}.pt"
        with path.with_suffix(".tmp").open("wb") as file:
            for _ in range(megabytes // FILES):
                file.write(block)
        path.with_suffix(".tmp").replace(path)
        files.append(path)
    return files


def preempted(cluster: NodeCluster, server: Notices, place: Place, megabytes: int) -> tuple[float, float]:
    """Seconds from the notice to the last byte, by the clock of this process and by what the run's log says."""
    node = cluster.names[-1]
    file = cluster.root(node) / "var/lib/hvdcloud/node.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "metadata": server.url}))
    assert all(answer.get("ok") for answer in cluster.prepare([sys.executable, "-c", TRAINS]))
    for name in cluster.names:
        # Nothing but the notice makes it upload.
        cluster.change_spec(name, **place.spec, keep_every=3600.0)
    assert cluster.launch() == {"ok": True}
    cluster.wait_for_log("at work", times=len(cluster.names))
    until(lambda: server.asked > 1, seconds=30, what="the agent to wait for the notice")
    # The client of the bucket is loaded beside the ranks; its first look at the directory leaves this.
    until(lambda: "manifest-1.json" in place.names(), seconds=30, what="the agent's first manifest")
    files = write(cluster.root(node) / "var/lib/hvdcloud/checkpoints" / RUN, megabytes)
    began = time.monotonic()
    server.preempt()
    while not {file.name for file in files} <= place.names():
        if time.monotonic() - began > LIMIT_SECONDS:
            raise TimeoutError(f"{megabytes} MB were not in the bucket after {LIMIT_SECONDS:.0f} s:\n{cluster.log()}")
        time.sleep(_POLL_SECONDS)
    took = time.monotonic() - began
    cluster.wait_for_log(f"node {node}: all {FILES} files are in the bucket (")
    said = float(cluster.log().rpartition(" s after the notice)")[0].rpartition("(")[2])
    cluster.verb(cluster.names[0], "stop", RUN)
    cluster.wait_done()
    # The head still puts the run's log beside the checkpoints, which nothing waits for here.
    cluster.end_everything()
    return took, said


def plain(place: Place, folder: Path, megabytes: int) -> float:
    """Seconds of the floor."""
    folder.mkdir()
    files = write(folder, megabytes)
    began = time.monotonic()
    place.floor(files)
    took = time.monotonic() - began
    shutil.rmtree(folder)
    return took


def measure(kind: str, megabytes: int, *, floor_first: bool) -> dict[str, float]:
    """One round of one size at one kind of bucket; what is first changes by the round."""
    with tempfile.TemporaryDirectory(prefix="hvd-") as base, node_cluster(nodes=2) as cluster, notices() as server:
        make = folder_bucket if kind == "file://" else storage_bucket
        with make(Path(base)) as place:
            plain(place, Path(base) / "warm", 1)
            floor = plain(place, Path(base) / "plain-files", megabytes) if floor_first else 0.0
            place.clear()
            took, said = preempted(cluster, server, place, megabytes)
            place.clear()
            floor = floor or plain(place, Path(base) / "plain-files", megabytes)
        return {"seconds": took, "said": said, "floor": floor}


def table(found: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]]) -> str:
    """As Markdown: medians, and the slowest."""
    lines = [
        "| bucket | checkpoints | notice → last byte | slowest | plain upload | ratio | within 30 s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for kind, sizes in found.items():
        for megabytes, rounds in sizes.items():
            took = [each["seconds"] for each in rounds]
            median, floor = statistics.median(took), statistics.median(each["floor"] for each in rounds)
            ratio = statistics.median(each["seconds"] / each["floor"] for each in rounds)
            within = "yes" if max(took) < NOTICE_SECONDS else "no"
            times = f"{median:.2f} s | {max(took):.2f} s | {floor:.2f} s | {ratio:.1f}"
            lines.append(f"| {kind} | {megabytes} MB | {times} | {within} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.preemption", description=__doc__)
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help="rounds (default 5)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="MB of checkpoints (default 10 100 1000)")
    parser.add_argument("--results", type=Path, help="folder for preemption.json and preemption.md")
    options = parser.parse_args()
    if options.runs < 1 or min(options.sizes) < FILES:
        parser.error(f"--runs is 1 or more, --sizes {FILES} or more")
    load = os.getloadavg()[0]
    found: dict[str, dict[int, list[dict[str, float]]]] = {
        kind: {size: [] for size in options.sizes} for kind in ("gs://", "file://")
    }
    for turn in range(options.runs):
        for kind, sizes in found.items():
            for megabytes, rounds in sizes.items():
                rounds.append(measure(kind, megabytes, floor_first=turn % 2 == 0))
                one = rounds[-1]
                say(
                    f"round {turn + 1}/{options.runs}: {kind} {megabytes} MB: {one['seconds']:.2f} s after the notice, "
                    f"the log says {one['said']:.1f} s; plain {one['floor']:.2f} s"
                )
    complete = options.runs >= FEWEST_RUNS and tuple(options.sizes) == SIZES
    document = {"files": FILES, "load": load, "cpus": os.cpu_count(), "rounds": found}
    publish("preemption", document, table(found), folder=options.results, complete=complete)
    return 0


if __name__ == "__main__":
    sys.exit(main())
