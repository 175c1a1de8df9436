"""A node's folder in which the real fetcher of data sets works, and a bucket with a data set."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from hvdcloud.node.files import lock_holder, read_json
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.spec import DataRequest, DataSet
from hvdcloud.storage.open import open_bucket
from tests.standins.storage.server import StorageServer
from tests.standins.storage.store import Conditions
from tests.support.harness import until
from tests.support.nodes import node_environment, start_verb

PREFIX = "gs://bucket/set"


@dataclass
class DataNode:
    """The fetcher of one node, in a process."""

    root: Path
    endpoint: str | None
    index: int = 0
    count: int = 1

    @property
    def data(self) -> Path:
        """HVDCLOUD_DATA."""
        return self.root / "var/lib/hvdcloud/data"

    def start(self, **sources: str | DataSet) -> None:
        """Start it, for data sets by name, each with its source."""
        sets = [each if isinstance(each, DataSet) else DataSet(name=n, source=each) for n, each in sources.items()]
        request = DataRequest(sets=tuple(sets), index=self.index, count=self.count, endpoint=self.endpoint)
        arguments = ("data-fetcher", json.dumps(request.to_json()))
        process = start_verb(*arguments, root=self.root, env=node_environment(self.root))
        assert process.stdout is not None
        # It closes its output when it works.
        assert process.stdout.read() == b"ready"

    def state(self) -> NodeData:
        """How far the sets are."""
        return NodeData.from_json(read_json(self.root / "run/hvdcloud/data.json"))

    def reaches(self, phase: str, *, files: int = 0) -> None:
        """Wait until the fetcher has written that it is as far."""

        def reached() -> bool:
            found = self.state()
            return found.phase == phase and found.files >= files and bool(found.total_bytes)

        until(reached, what=f"{phase} with {files} files")

    def fetch(self, **sources: str | DataSet) -> NodeData:
        """Start, and return the state once the fetcher has ended."""
        self.start(**sources)
        return self.ended()

    def ended(self) -> NodeData:
        """The state, once the sets are ready or failed, and the fetcher has ended."""
        until(lambda: not self.at_work(), what="the fetcher")
        found = self.state()
        assert found.phase in ("ready", "failed")
        until(lambda: not self.processes(), what="the end of the fetcher's processes")
        return found

    def processes(self) -> list[psutil.Process]:
        """The fetcher of this node, and its workers."""
        found = []
        # The command line first: to read all that can be read of all processes takes long.
        for each in psutil.process_iter(["cmdline"]):
            if "data-fetcher" in (each.info["cmdline"] or []):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    ours = each.environ().get("HVDCLOUD_NODE_ROOT") == str(self.root)
                    if ours and each.status() != psutil.STATUS_ZOMBIE:
                        found.append(each)
        return found

    def at_work(self) -> bool:
        """Whether the fetcher works; costs less than to look at all processes."""
        return lock_holder(self.root / "run/hvdcloud/data.fetcher") is not None

    def kill(self) -> None:
        """`kill -9` of the fetcher alone, whose workers end with it."""
        every = self.processes()
        ids = {each.pid for each in every}
        for each in every:
            if each.ppid() not in ids:
                each.kill()
        # A process whose first thread has ended looks dead while others still have its files open.
        until(lambda: not (self.processes() or self.at_work()), what="the end of the killed fetcher")

    def content(self, name: str = "train") -> dict[str, bytes]:
        """All files of a set."""
        folder = self.data / name
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def put(server: StorageServer, objects: dict[str, bytes]) -> None:
    """Write objects below PREFIX."""
    bucket = open_bucket(PREFIX, endpoint=server.url)
    for name, data in objects.items():
        bucket.write(name, data)


def plant(server: StorageServer, names: Iterable[str], *, like: str, folder: str = "set") -> None:
    """Objects with the content of one below PREFIX and any name, as anyone who may write there can make them."""
    bucket = server.store.buckets["bucket"]
    version = bucket.live[f"set/{like}"]
    made = {name: dataclasses.replace(version, name=name) for name in (f"{folder}/{each}" for each in names)}
    bucket.live.update(made)
    bucket.names[:] = sorted({*bucket.names, *made})


def delete(server: StorageServer, name: str) -> None:
    """Delete an object below PREFIX."""
    server.store.delete("bucket", f"set/{name}", generation=None, conditions=Conditions())


def downloads(server: StorageServer) -> list[tuple[str, int, str]]:
    """Target, status and range of each request for an object's bytes so far."""
    return [(path, status, span) for _, path, status, span in list(server.requests) if path.startswith("/download/")]
