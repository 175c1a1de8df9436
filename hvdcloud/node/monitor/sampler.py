"""Samples of a node while a run lasts: a bounded file here, and a copy of it beside the run's checkpoints.

Both are done by threads of the agent that nothing waits for longer than a moment: neither a driver that hangs nor a
bucket that does not answer may hold a run up.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdcloud.checkpoints.manifest import samples_name
from hvdcloud.errors import HvdcloudError
from hvdcloud.node.files import replace, write_json
from hvdcloud.node.monitor.sample import Sample, Sensors, newest_file, samples_file
from hvdcloud.node.monitor.waits import WaitsReader
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.runs.reports import RankWaits
from hvdcloud.storage.base import Bucket

EVERY_SECONDS = 5.0
FIRST_SECONDS = 1.0
UPLOAD_SECONDS = 60.0
FIRST_UPLOAD_SECONDS = 10.0
LAST_UPLOAD_SECONDS = 10.0
"""How long the end of a run waits for the last upload."""
_LAST_SAMPLE_SECONDS = 0.5
MOST_LINES = 2000
_LOOK_SHARE = 20.0
"""Counting the files that wait takes at most one part in this many of the time."""


class Series:
    """A file with a sample per line that covers the whole run, however long: with more than `most` every second one
    goes."""

    def __init__(self, path: Path, *, most: int = MOST_LINES) -> None:
        self._path = path
        self._most = most
        self._every = 1
        self._count = 0
        try:
            self._lines = path.read_bytes().splitlines(keepends=True)
        except OSError:
            self._lines = []

    def add(self, sample: Sample) -> None:
        """Keep a sample, or one in several. Raises OSError: it could not be written."""
        self._count += 1
        if self._count % self._every:
            return
        line = json.dumps(sample, separators=(",", ":")).encode() + b"\n"
        self._lines.append(line)
        if len(self._lines) <= self._most:
            with self._path.open("ab") as file:
                file.write(line)
            return
        self._lines = self._lines[::2]
        self._every *= 2
        replace(self._path, b"".join(self._lines))


class Sampler:
    """Samples one run on this node. `say_waits` is called, in a thread, with what the ranks have counted since."""

    def __init__(
        self,
        spec: Spec,
        upload_loop: UploadLoop,
        *,
        say_waits: Callable[[Sequence[RankWaits]], object] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._waits = WaitsReader(spec.run, spec.name)
        self._say_waits = say_waits
        self._upload_loop = upload_loop
        self._ending = threading.Event()
        self._closed = threading.Event()
        self._look_at = 0.0
        self._waiting: int | None = None
        self._threads = [
            threading.Thread(target=self._sample, name="samples", daemon=True),
            threading.Thread(target=self._upload, name="samples-upload", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self, *, upload: bool) -> None:
        """The ranks have ended: a last sample, and a last upload unless the bucket has just proved out of reach. Waits
        for neither longer than a moment."""
        self._ending.set()
        sampling, uploading = self._threads
        sampling.join(_LAST_SAMPLE_SECONDS)
        self._closed.set()
        if upload:
            uploading.join(LAST_UPLOAD_SECONDS)

    def _sample(self) -> None:
        sensors = Sensors()
        series = Series(samples_file(self._spec.run))
        sensors.read()
        at = time.monotonic() + FIRST_SECONDS
        while True:
            over = self._ending.wait(max(0.0, at - time.monotonic()))
            at = max(at + EVERY_SECONDS, time.monotonic())
            sample = sensors.read() | self._around(last=over)
            # A full disk; the run has greater worries, and the next one may fit.
            with contextlib.suppress(OSError):
                series.add(sample)
                write_json(newest_file(self._spec.run), sample)
            if waits := self._waits.read():
                self._say_waits(waits)
            if over:
                return

    def _around(self, *, last: bool) -> Sample:
        """How long the log is, which gives its lines their time, and how many checkpoints wait for their upload."""
        found: Sample = {}
        if self._spec.node == 0:
            with contextlib.suppress(OSError):
                found["log"] = state.log_file(self._spec.run).stat().st_size
        began = time.monotonic()
        if last or began >= self._look_at:
            self._waiting = self._upload_loop.waiting()
            self._look_at = time.monotonic() + _LOOK_SHARE * (time.monotonic() - began)
        if self._waiting is not None:
            found["waiting"] = self._waiting
        return found

    def _upload(self) -> None:
        wait = FIRST_UPLOAD_SECONDS
        over = False
        while not over:
            over = self._closed.wait(wait)
            wait = UPLOAD_SECONDS
            # Samples are not checkpoints: where they cannot be kept, the next upload has them too.
            with contextlib.suppress(HvdcloudError, OSError):
                if (bucket := self._upload_loop.bucket) is not None:
                    self.put(bucket)

    def put(self, bucket: Bucket) -> None:
        """Write the file's copy. Raises HvdcloudError, OSError: it failed."""
        name = samples_name(self._spec.cluster, self._spec.run, self._spec.node)
        bucket.write(name, samples_file(self._spec.run).read_bytes())
