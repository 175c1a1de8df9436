"""Checks that run side by side, each with a deadline: what `doctor` shows, and what `up` and `launch` ask first.

Nothing here knows what is checked: the providers and hvdcloud/doctor say that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from hvdcloud.errors import CredentialsError, ExitCode, HvdcloudError, NodeError, UsageError

T = TypeVar("T")

DEADLINE_SECONDS = 15.0
SETUP_HINT = "hvdcloud setup makes one and writes it into hvdcloud.yaml"
"""How to get what costs nothing while idle: networks, service accounts, buckets, repositories."""


class Status(str, Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"  # A run is possible, but there is something to know.
    FAILED = "failed"
    UNKNOWN = "unknown"  # The check was not made, or has no answer.


class NoAnswerError(NodeError):
    """A service that a check asked does not answer. That proves nothing: what needs the service asks it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found."""

    status: Status
    message: str
    hint: str = ""  # The next command to type, or what to change.
    details: str = ""
    error: type[HvdcloudError] | None = None
    """The kind of error, which decides the exit code of a failure; None: no error."""

    @property
    def summary(self) -> str:
        """Message and hint in a line."""
        return f"{self.message}; {self.hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check."""

    name: str
    run: Callable[[], Finding]
    """May raise HvdcloudError, which is a failure as well. Called once, on a thread of its own."""
    blocks: bool = True
    """After a failure, `up` and `launch` build and make nothing; else they warn: it may be possible all the same."""
    see: tuple[str, ...] = ()
    """Other checks: where one of them has failed for the same reason, `doctor` refers to it instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a check, as `doctor` shows it."""

    name: str
    status: Status
    message: str
    hint: str
    details: str
    exit_code: ExitCode  # Of the command, if this is the first one that failed.


def fine(message: str) -> Finding:
    """A finding: the check passed."""
    return Finding(status=Status.OK, message=message)


def warning(message: str, *, hint: str) -> Finding:
    """A finding: a run is possible, but there is something to know."""
    return Finding(status=Status.WARNING, message=message, hint=hint)


def unknown(message: str) -> Finding:
    """A finding: the check has no answer."""
    return Finding(status=Status.UNKNOWN, message=message)


def failed(message: str, *, hint: str, error: type[HvdcloudError] = UsageError, details: str = "") -> Finding:
    """A finding: no run is possible."""
    return Finding(status=Status.FAILED, message=message, hint=hint, error=error, details=details)


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


def run_checks(checks: Sequence[Check], *, seconds: float = DEADLINE_SECONDS) -> list[Checked]:
    """Run all checks side by side, each for so many seconds at most; the outcomes in the order of `checks`."""
    answers = _start(checks)
    wait(answers.values(), timeout=seconds)
    found = {name: _result(answer, limit=seconds) for name, answer in answers.items()}
    return [_checked(check, found) for check in checks]


def require(checks: Sequence[Check], *, warn: Callable[[str], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Run all checks side by side and raise what the first that blocks has found; warn of everything else.

    What blocks is looked at first: a failure does not wait for the answers of the others.

    Args:
        seconds: how long a check may take. One without an answer blocks nothing.
    """
    began, answers, warnings = time.monotonic(), _start(checks), list[str]()
    for check in sorted(checks, key=lambda check: not check.blocks):
        wait([answers[check.name]], timeout=max(0.0, began + seconds - time.monotonic()))
        finding = _result(answers[check.name], limit=seconds)
        proves = finding.error not in (NoAnswerError, HvdcloudError)
        if finding.status is Status.FAILED and proves and check.blocks:
            raise (finding.error or HvdcloudError)(finding.message, hint=finding.hint, details=finding.details)
        if finding.status in (Status.FAILED, Status.WARNING):
            warnings.append(finding.summary if proves else f"check {check.name}: {finding.summary}")
    for text in warnings:
        warn(text)


def _start(checks: Sequence[Check]) -> dict[str, Future[Finding]]:
    """Checks on threads; one that does not end delays neither the others nor the end of the program."""
    answers = {check.name: Future[Finding]() for check in checks}
    for check in checks:
        threading.Thread(target=_run, args=(check, answers[check.name]), name=check.name, daemon=True).start()
    return answers


def _run(check: Check, answer: Future[Finding]) -> None:
    try:
        finding = check.run()
    except HvdcloudError as error:
        finding = failed(error.message, hint=error.hint, error=type(error), details=error.details)
    except Exception as error:  # noqa: BLE001 - a bug in one check is that check's answer; the others still count
        message = f"a bug in hvdcloud: {type(error).__name__}: {error}"
        finding = failed(message, hint="please report it", error=HvdcloudError)
    answer.set_result(finding)


def _result(answer: Future[Finding], *, limit: float) -> Finding:
    if answer.done():
        return answer.result()
    hint = "check this machine's network and proxy, then hvdcloud doctor again"
    return failed(f"did not answer within {limit:g} s", hint=hint, error=NoAnswerError)


def _checked(check: Check, found: Mapping[str, Finding]) -> Checked:
    """The outcome of a check: what it has found, or a reference to the check that has found the cause."""
    finding = found[check.name]
    # Not every provider has every check.
    if cause := next((name for name in check.see if name in found and _explains(found[name], finding)), ""):
        finding = unknown(f"not checked: see {cause}")
    return Checked(
        name=check.name,
        status=finding.status,
        message=finding.message,
        hint=finding.hint,
        details=finding.details,
        exit_code=finding.error.code if finding.error and finding.status is Status.FAILED else ExitCode.OK,
    )


def _explains(cause: Finding, finding: Finding) -> bool:
    """Whether a failure may be the reason of what another check has found."""
    if cause.status is not Status.FAILED or cause.error is None or finding.error is None:
        return False
    # What somebody may not see looks as if it did not exist.
    unseen = issubclass(cause.error, CredentialsError) and issubclass(finding.error, UsageError)
    return unseen or issubclass(finding.error, cause.error)
