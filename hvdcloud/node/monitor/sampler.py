"""Samples of a node while a run lasts: a file here, and a copy of it beside the run's checkpoints.

Both are done by a thread of the agent that nothing waits for longer than a moment: neither a driver that hangs nor a
bucket that does not answer may hold a run up.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence

from hvdcloud.checkpoints.manifest import samples_name
from hvdcloud.errors import HvdcloudError
from hvdcloud.node.files import write_json
from hvdcloud.node.monitor.sample import GpuReader, Sample, Sensors, newest_file, samples_file
from hvdcloud.node.monitor.waits import WaitsReader
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.runs.reports import RankWaits

EVERY_SECONDS = 5.0
FIRST_SECONDS = 1.0
UPLOAD_SECONDS = 60.0
FIRST_UPLOAD_SECONDS = 10.0
LAST_UPLOAD_SECONDS = 10.0
"""How long the end of a run waits for the last sample and its upload."""
KEPT_SHARE = 1000
"""Of a long run, a sample is kept when this part of the time so far has passed: a day has some 4,000."""


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
        self._uploads_at_last = True
        self._thread = threading.Thread(target=self._work, name="samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, *, upload: bool) -> None:
        """The ranks have ended: a last sample, and a last upload unless the bucket has just proved out of reach. Waits
        for them no longer than a moment."""
        self._uploads_at_last = upload
        self._ending.set()
        self._thread.join(LAST_UPLOAD_SECONDS)

    def _work(self) -> None:
        sensors = Sensors(GpuReader())
        sensors.read()
        began = time.monotonic()
        at, keep_at, upload_at = began + FIRST_SECONDS, began, began + FIRST_UPLOAD_SECONDS
        while True:
            over = self._ending.wait(max(0.0, at - time.monotonic()))
            now = time.monotonic()
            at = max(at + EVERY_SECONDS, now)
            sample = sensors.read() | self._around()
            # A full disk; the run has greater worries, and the next one may fit.
            with contextlib.suppress(OSError):
                write_json(newest_file(self._spec.run), sample)
                if over or now >= keep_at:
                    keep_at = now + (now - began) / KEPT_SHARE
                    with samples_file(self._spec.run).open("ab") as file:
                        file.write(json.dumps(sample, separators=(",", ":")).encode() + b"\n")
            if waits := self._waits.read():
                self._say_waits(waits)
            if self._uploads_at_last if over else now >= upload_at:
                self._upload()
                upload_at = time.monotonic() + UPLOAD_SECONDS
            if over:
                return

    def _around(self) -> Sample:
        """How long the log is, which gives its lines their time, and how many checkpoints wait for their upload."""
        found: Sample = {}
        if self._spec.node == 0:
            with contextlib.suppress(OSError):
                found["log"] = state.log_file(self._spec.run).stat().st_size
        if self._upload_loop.waiting is not None:
            found["waiting"] = self._upload_loop.waiting
        return found

    def _upload(self) -> None:
        name = samples_name(self._spec.cluster, self._spec.run, self._spec.node)
        # Samples are not checkpoints: where they cannot be kept, the next upload has them too.
        with contextlib.suppress(HvdcloudError, OSError):
            if (bucket := self._upload_loop.bucket) is not None:
                bucket.write(name, samples_file(self._spec.run).read_bytes())
