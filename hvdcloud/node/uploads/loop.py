"""Checkpoints leave the node while the run goes on; a thread of the agent's does it.

The bucket's client is imported and opened in the thread: neither a slow import nor an unreachable bucket delays the
ranks, and a bucket that comes back later is used then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.run.spec import Spec

if TYPE_CHECKING:
    from hvdcloud.node.uploads.uploader import Uploader
    from hvdcloud.storage.base import Bucket

FIRST_SCAN_SECONDS = 1.0
FLUSH_STEP_SECONDS = 60.0
"""A final flush that gets nothing done for this long is given up; `flush` tries again later."""
FLUSH_SECONDS = 3600.0


class Report(NamedTuple):
    """How far the checkpoints of one node are in the bucket."""

    complete: bool = False
    files: int = 0
    """How many files this agent has uploaded."""
    pending: Sequence[str] = ()
    errors: Sequence[str] = ()
    skipped: Sequence[str] = ()
    """What is not ours to upload, such as links that lead out of the directory."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict()


def report_file(run: str) -> Path:
    """uploads.json: the last report of this node's agent."""
    return paths.run_dir(run) / "uploads.json"


def is_complete(run: str) -> bool:
    """Whether all checkpoints of this node are in the bucket and its manifest says so."""
    return bool((read_json(report_file(run)) or {}).get("complete"))


class UploadLoop:
    """Uploads the checkpoints of one run on this node.

    Args:
        spec: of the run.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.bucket: Bucket | None = None
        """The run's bucket; None as long as it could not be opened."""
        self._uploader: Uploader | None = None
        self._uploaded: set[str] = set()
        self._working = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to look for checkpoints."""
        self._thread.start()

    def waiting(self) -> int | None:
        """How many files are not in the bucket as they are; None: it is not known yet. Does not block."""
        uploader = self._uploader
        try:
            return None if uploader is None else uploader.waiting()
        except OSError:
            return None

    def flush_now(self) -> Report:
        """Upload everything that is not being written at this moment, while the run goes on. Blocks."""
        with self._working:
            return self._scan(final=True)

    def gather(self) -> str:
        """From the bucket what is newer there, while no rank runs and all nodes have uploaded what they have. Blocks.

        Returns:
            What went wrong; empty if nothing did. Horovod can be started all the same, with what is here.
        """
        from hvdcloud.node.uploads.restore import gather

        with self._working:
            # What could not be uploaded must not be replaced by something older.
            if errors := self._scan(final=True).errors:
                return "; ".join(errors)
            assert self.bucket is not None
            try:
                gather(
                    self.bucket,
                    cluster=self._spec.cluster,
                    run=self._spec.run,
                    directory=paths.checkpoints_dir(self._spec.run),
                )
            except Exception as error:  # noqa: BLE001 - reported; the ranks take what they find
                return f"{type(error).__name__}: {error}"
            finally:
                # The next one knows what was fetched, and does not send it back.
                self._uploader = None
            return ""

    def finish(self) -> Report:
        """The ranks have ended: upload the rest and close the manifest. Blocks; waits for an upload in progress."""
        self._ending.set()
        with self._working:
            report = self._finish()
        write_report(self._spec.run, report)
        return report

    def _work(self) -> None:
        wait = min(self._spec.keep_every, FIRST_SCAN_SECONDS)
        with self._working:
            self._open()
        while not self._ending.wait(wait):
            with self._working:
                if not self._ending.is_set():
                    self._scan(final=False)
            wait = self._spec.keep_every

    def _open(self) -> str | None:
        """Open the bucket if it is not; the error where that fails."""
        if self._uploader is not None:
            return None
        try:
            from hvdcloud.node.uploads.bucket import open_run_bucket
            from hvdcloud.node.uploads.uploader import Uploader

            self.bucket = self.bucket or open_run_bucket(self._spec)
            self._uploader = Uploader(
                self.bucket,
                cluster=self._spec.cluster,
                run=self._spec.run,
                node=self._spec.node,
                directory=paths.checkpoints_dir(self._spec.run),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on, and its end reports it
            return f"{self._spec.bucket}: {error}"
        return None

    def _scan(self, *, final: bool) -> Report:
        if error := self._open():
            return self._unopened(error)
        assert self._uploader is not None
        try:
            result = self._uploader.scan(final=final)
        except Exception as error:  # noqa: BLE001 - as above: a failed scan is tried again, the end reports it
            return Report(files=len(self._uploaded), errors=[f"{type(error).__name__}: {error}"])
        self._uploaded.update(result.uploaded)
        return Report(
            files=len(self._uploaded),
            pending=list(result.pending),
            errors=list(result.errors),
            skipped=list(result.skipped),
        )

    def _finish(self) -> Report:
        """Final uploads, as long as they get on."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while True:
            if error := self._open():
                return self._unopened(error)
            assert self._uploader is not None
            before = len(self._uploaded)
            try:
                result = self._uploader.finish(min(deadline, time.monotonic() + FLUSH_STEP_SECONDS))
            except Exception as error:  # noqa: BLE001 - reported; `flush` tries again
                return Report(files=len(self._uploaded), errors=[f"{type(error).__name__}: {error}"])
            self._uploaded.update(result.uploaded)
            pending, errors = list(result.pending), list(result.errors)
            report = Report(
                complete=not pending and not errors,
                files=len(self._uploaded),
                pending=pending,
                errors=errors,
                skipped=list(result.skipped),
            )
            if report.complete or len(self._uploaded) == before or time.monotonic() >= deadline:
                return report

    def _unopened(self, error: str) -> Report:
        """The bucket cannot be opened: everything there is, is pending."""
        folder = paths.checkpoints_dir(self._spec.run)
        try:
            there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        except OSError:
            there = []
        return Report(pending=there, errors=[error])


def write_report(run: str, report: Report) -> None:
    """Remember how far the checkpoints are; on a full disk it is asked of the bucket again."""
    try:
        write_json(report_file(run), report.as_dict())
    except OSError:
        report_file(run).unlink(missing_ok=True)
