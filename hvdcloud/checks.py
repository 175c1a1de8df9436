"""Checks that run concurrently: each waits only for those that it needs, and each has a deadline.

Nothing here knows what is checked: `hvdcloud doctor` and the providers say that.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from hvdcloud.errors import ExitCode, HvdcloudError, NodeError

T = TypeVar("T")

DEADLINE_SECONDS = 15.0


class Status(str, Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"  # A run is possible, but there is something to know.
    FAILED = "failed"
    UNKNOWN = "unknown"  # The check was not made, or has no answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found."""

    status: Status
    message: str
    hint: str = ""  # The next command to type, or what to change.
    details: str = ""
    error: type[HvdcloudError] | None = None
    """The kind of error, which decides the exit code of a failure; None: no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its name, its function, and what it depends on."""

    name: str
    run: Callable[[], Finding]
    """May raise HvdcloudError, which is a failure as well. Called once, on a thread of its own."""
    needs: tuple[str, ...] = ()  # Checks that have to pass first; if one of them does not, this one is not made.
    explained_by: tuple[str, ...] = ()
    """Other checks. If one of them fails with the same kind of error, this one only refers to it."""
    early: bool = False  # Asked by `up`, `run` and `launch` too: it changes nothing and takes less than a second.
    moot_without: tuple[str, ...] = ()  # Other checks. If one of them fails, a failure of this one only refers to it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a check."""

    name: str
    status: Status
    message: str
    hint: str
    details: str
    exit_code: ExitCode  # Of the command, if this is the first one that failed.
    seconds: float


def fine(message: str) -> Finding:
    """A finding: the check passed."""
    return Finding(status=Status.OK, message=message)


def warning(message: str, *, hint: str) -> Finding:
    """A finding: a run is possible, but there is something to know."""
    return Finding(status=Status.WARNING, message=message, hint=hint)


def unknown(message: str, *, hint: str = "", error: type[HvdcloudError] | None = None) -> Finding:
    """A finding: the check has no answer."""
    return Finding(status=Status.UNKNOWN, message=message, hint=hint, error=error)


def failed(message: str, *, hint: str, error: type[HvdcloudError], details: str = "") -> Finding:
    """A finding: no run is possible."""
    return Finding(status=Status.FAILED, message=message, hint=hint, error=error, details=details)


def failure(error: HvdcloudError) -> Finding:
    """An exception as a finding."""
    return failed(error.message, hint=error.hint, error=type(error), details=error.details)


class Once(Generic[T]):
    """An answer that several checks need: the first call makes it, others wait for it; all raise what it raised."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Future[T] = Future()

    def __call__(self) -> T:
        with self._lock:
            if not self._made.done():
                try:
                    self._made.set_result(self._make())
                except Exception as error:  # noqa: BLE001 - every call raises it
                    self._made.set_exception(error)
        return self._made.result()


def run_checks(
    checks: Sequence[Check],
    *,
    seconds: float = DEADLINE_SECONDS,
    on_change: Callable[[Sequence[str], int], object] = lambda running, done: None,
) -> list[Checked]:
    """Make every check as soon as those that it needs have passed; returns the outcomes in the order of `checks`.

    Args:
        seconds: how long a check may take.
        on_change: called with the names of the running checks and with the number of those that have ended.
    """
    return _Round(checks, seconds=seconds).run(on_change)


class _Round:
    def __init__(self, checks: Sequence[Check], *, seconds: float) -> None:
        self._checks = checks
        self._seconds = seconds
        self._waiting = list(checks)
        self._running: dict[str, float] = {}
        self._found: dict[str, tuple[Finding, float]] = {}
        self._answers: queue.SimpleQueue[tuple[str, Finding]] = queue.SimpleQueue()

    def run(self, on_change: Callable[[Sequence[str], int], object]) -> list[Checked]:
        while self._waiting or self._running:
            if not self._start_some():
                on_change(tuple(self._running), len(self._found))
                self._wait()
        on_change((), len(self._found))
        return [self._checked(check) for check in self._checks]

    def _start_some(self) -> bool:
        """Start what need not wait any more; returns whether a check got its outcome without being made."""
        ready = [check for check in self._waiting if set(check.needs) <= self._found.keys()]
        if not ready and not self._running:
            raise AssertionError(f"checks that wait for each other or for an unknown one: {self._waiting}")
        known = False
        for check in ready:
            self._waiting.remove(check)
            bad = [name for name in check.needs if self._found[name][0].status in (Status.FAILED, Status.UNKNOWN)]
            if bad:
                self._found[check.name] = unknown(f"not checked: no {' and no '.join(bad)}"), 0.0
                known = True
                continue
            self._running[check.name] = time.monotonic()
            # A check that does not end in time delays neither the others nor the end of the program.
            threading.Thread(target=self._make, args=(check,), name=check.name, daemon=True).start()
        return known

    def _make(self, check: Check) -> None:
        try:
            finding = check.run()
        except HvdcloudError as error:
            finding = failure(error)
        except Exception as error:  # noqa: BLE001 - a bug in one check is that check's answer; the others still count
            finding = failed(
                f"a bug in hvdcloud: {type(error).__name__}: {error}", hint="please report it", error=HvdcloudError
            )
        self._answers.put((check.name, finding))

    def _wait(self) -> None:
        """Wait for one more answer, or until a deadline has passed."""
        late_first = min(self._running, key=self._running.__getitem__)
        left = self._running[late_first] + self._seconds - time.monotonic()
        try:
            name, finding = self._answers.get(timeout=max(0.0, left))
        except queue.Empty:
            name = late_first
            finding = failed(
                f"did not answer within {self._seconds:g} s",
                hint="check this machine's network and proxy, then hvdcloud doctor again",
                error=NodeError,
            )
        if name in self._running:
            self._found[name] = finding, time.monotonic() - self._running.pop(name)

    def _checked(self, check: Check) -> Checked:
        finding, seconds = self._found[check.name]
        for name in (*check.moot_without, *check.explained_by):
            if name not in self._found:
                # Not every provider has this check.
                continue
            other = self._found[name][0]
            said = other.error is finding.error or name in check.moot_without
            if finding.error is not None and other.status is Status.FAILED and said:
                finding = unknown(f"not checked: see {name}")
        return Checked(
            name=check.name,
            status=finding.status,
            message=finding.message,
            hint=finding.hint,
            details=finding.details,
            exit_code=finding.error.code if finding.error and finding.status is Status.FAILED else ExitCode.OK,
            seconds=round(seconds, 3),
        )


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def unwritable(folder: Path) -> str:
    """Why a folder can neither be made nor written: `/mnt may not be written`; empty if it can."""
    there = existing(folder)
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written"


def setup_hint() -> str:
    """How to get what costs nothing while idle: networks, service accounts, buckets, repositories."""
    more = "" if shutil.which("terraform") else " (it needs terraform, which is not on this machine's PATH)"
    return f"hvdcloud setup makes one and writes it into hvdcloud.yaml{more}"
