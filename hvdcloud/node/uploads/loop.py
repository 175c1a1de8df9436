"""A thread of the agent uploads checkpoints while the run is active.

The bucket's client is imported and opened in the thread: neither a slow import nor an unreachable bucket delays the
ranks, and a bucket that comes back later is used then.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads.outputs import Outputs
from hvdcloud.node.uploads.restore import gather
from hvdcloud.node.uploads.scan import walk
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.runs.reports import UploadReport
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.threads import attempt

FIRST_SCAN_SECONDS = 1.0
HURRIED_SECONDS = 0.5
"""Between two looks at the directory of a node that leaves."""
FLUSH_SECONDS = 60.0
"""A final flush that gets nothing done for this long is given up; `flush` tries again later."""
_FINAL_SCAN = partial(Uploader.scan, final=True)


def is_complete(run: str) -> bool:
    """Whether all checkpoints of this node are in the bucket and its manifest says so."""
    return UploadReport.from_json(read_json(paths.uploads_file(run))).complete


def incomplete_runs() -> list[str]:
    """The runs of this node of which it may hold checkpoints that are not in the bucket."""
    return sorted(folder.name for folder in paths.runs_dir().glob("*") if not is_complete(folder.name))


class UploadLoop:
    """Uploads the checkpoints of one run on this node. `say_left_out` is called, in a thread, with what is too large to
    be kept, when that is found."""

    def __init__(self, spec: Spec, *, say_left_out: Callable[[Sequence[str]], object] = lambda _: None) -> None:
        self._spec = spec
        self._say_left_out = say_left_out
        self._left_out: set[str] = set()
        self.bucket: Bucket | None = None
        """The run's bucket; None as long as it could not be opened."""
        self.waiting: int | None = None
        """How many files the last look could not upload yet; None: there was none."""
        self._uploader: Uploader | None = None
        self._uploaded: set[str] = set()
        self._working = threading.Lock()
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._on_checked: Callable[[UploadReport], object] | None = None
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)

    @property
    def _directory(self) -> Path:
        return paths.checkpoints_dir(self._spec.run)

    @property
    def _outputs(self) -> Outputs:
        return Outputs(self._spec.run, self._spec.workspace_bytes)

    def start(self) -> None:
        self._thread.start()

    def hurry(self, on_checked: Callable[[UploadReport], object]) -> None:
        """From now on upload everything that is not being written, again and again, as this node leaves. Calls
        `on_checked` after every look at the directory, in the thread."""
        self._on_checked = on_checked
        self._woken.set()

    def flush_now(self) -> UploadReport:
        """Upload everything that is not being written at this moment, while the run is active. Blocks."""
        with self._working:
            return self._report(_FINAL_SCAN)

    def gather(self) -> str:
        """Fetch what is newer in the bucket, while no rank runs and all nodes have uploaded what they have. Blocks.
        Returns what went wrong; empty if nothing did. Horovod can be started all the same, with what is here."""
        with self._working:
            # What could not be uploaded must not be replaced by something older.
            if errors := self._report(_FINAL_SCAN).errors:
                return "; ".join(errors)
            assert self.bucket is not None
            try:
                gather(self.bucket, cluster=self._spec.cluster, run=self._spec.run, directory=self._directory)
            except Exception as error:  # noqa: BLE001 - reported; the ranks take what they find
                return f"{type(error).__name__}: {error}"
            finally:
                # The next one knows what was fetched, and does not send it back.
                self._uploader = None
            return ""

    def finish(self, *, patience: float = math.inf) -> UploadReport:
        """Upload the rest, once the ranks have ended, and close the manifest. Blocks; waits for an upload in progress.

        Args:
            patience: how many seconds to wait for files that are being written.
        """
        self._ending.set()
        self._woken.set()
        with self._working:
            report = self._report(partial(Uploader.finish, seconds=FLUSH_SECONDS, patience=patience))
        write_report(self._spec.run, report)
        return report

    def _work(self) -> None:
        wait = min(self._spec.keep_every, FIRST_SCAN_SECONDS)
        with self._working, contextlib.suppress(Exception):
            self._open()
        while True:
            self._woken.wait(wait)
            self._woken.clear()
            told = self._on_checked
            with self._working:
                if self._ending.is_set():
                    return
                report = self._report(_FINAL_SCAN if told is not None else Uploader.scan)
            if told is not None:
                told(report)
            wait = self._spec.keep_every if told is None else HURRIED_SECONDS

    def _open(self) -> Uploader:
        """The uploader, once the bucket can be opened. Raises Exception: it cannot."""
        if self._uploader is None:
            self.bucket = self.bucket or self._spec.open_bucket()
            self._uploader = Uploader(
                self.bucket,
                cluster=self._spec.cluster,
                run=self._spec.run,
                node=self._spec.node,
                directory=self._directory,
                outputs=self._outputs,
                uploaded=self._uploaded,
            )
        return self._uploader

    def _report(self, work: Callable[[Uploader], UploadReport]) -> UploadReport:
        """What the uploader reports of its work. Whatever goes wrong, the run continues, and its end reports it."""
        try:
            uploader = self._open()
        except Exception as error:  # noqa: BLE001 - as above
            # Everything there is, is pending.
            there = attempt(self._directory, lambda folder: walk(folder, []) + self._outputs.files([], set()))
            pending = sorted(file.name for file in there.result or ())
            report = UploadReport(pending=pending, errors=[f"{self._spec.bucket}: {error}"])
        else:
            # Where that fails, nobody knows which files are pending.
            done = attempt(uploader, work)
            failed = UploadReport(files=len(self._uploaded), errors=[f"{type(done.error).__name__}: {done.error}"])
            report = done.result or failed
        self.waiting = len(report.pending)
        if new := {*report.left_out} - self._left_out:
            self._left_out |= new
            self._say_left_out(sorted(new))
        return report


def write_report(run: str, report: UploadReport) -> None:
    """Remember how far the checkpoints are; on a full disk it is asked of the bucket again."""
    try:
        write_json(paths.uploads_file(run), report.to_json())
    except OSError:
        paths.uploads_file(run).unlink(missing_ok=True)
