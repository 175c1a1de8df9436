"""Checks run side by side and never forever: `doctor` shows what they find, and what blocks stops `up` and `launch`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hvdcloud.checks import (
    Check,
    Checked,
    Finding,
    NoAnswerError,
    Once,
    Status,
    failed,
    fine,
    require,
    run_checks,
    unknown,
    warning,
)
from hvdcloud.errors import CapacityError, CredentialsError, ExitCode, HvdcloudError, UsageError


def refuse(error: type[HvdcloudError]) -> Callable[[], Finding]:
    return lambda: failed("it is not", hint="fix it", error=error)


def by_name(found: list[Checked]) -> dict[str, Checked]:
    return {each.name: each for each in found}


@pytest.fixture
def hang() -> Iterator[Callable[[], Finding]]:
    """A check without an answer."""
    ends = threading.Event()

    def hang() -> Finding:
        ends.wait()
        return fine("too late")

    yield hang
    ends.set()


def test_a_check_that_does_not_answer_holds_nothing_up(
    hang: Callable[[], Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdcloud.checks.time", Clock())
    checks = [
        Check(name="well", run=lambda: fine("")),
        Check(name="hangs", run=hang),
        Check(name="hangs too", run=hang, see=("well",)),
        Check(name="asks it", run=hang, see=("hangs",)),
    ]
    found = by_name(run_checks(checks, seconds=1.0))
    assert found["hangs"].message == found["hangs too"].message == "did not answer within 1 s"
    assert found["hangs"].exit_code is ExitCode.NODE
    assert found["well"].status is Status.OK
    assert found["asks it"].message == "not checked: see hangs"


class Clock:
    """For the command itself, the deadline has come once it has the first answer."""

    def __init__(self) -> None:
        self._asked = 0

    def monotonic(self) -> float:
        if threading.current_thread() is threading.main_thread():
            self._asked += 1
        return 15.0 if self._asked > 2 else 0.0


@pytest.mark.parametrize(
    ("of_apis", "finding", "refers"),
    [
        (CredentialsError, failed("no", hint="", error=CredentialsError), True),
        (CredentialsError, failed("not found", hint="", error=UsageError), True),
        (UsageError, failed("no", hint="", error=CredentialsError), False),
        (CredentialsError, failed("no", hint="", error=CapacityError), False),
        (CredentialsError, unknown("nobody knows"), False),
        (CredentialsError, fine("there"), False),
    ],
)
def test_the_same_trouble_is_reported_once(of_apis: type[HvdcloudError], finding: Finding, refers: bool) -> None:
    checks = [
        Check(name="APIs", run=refuse(of_apis)),
        Check(name="zones", run=lambda: finding, see=("another provider's", "APIs")),
    ]
    found = by_name(run_checks(checks))["zones"]
    assert (found.message == "not checked: see APIs") is refers
    assert found.status is (Status.UNKNOWN if refers else finding.status)
    assert (found.exit_code is ExitCode.OK) is (refers or finding.status is not Status.FAILED)


def test_an_error_is_a_failure_with_its_hint_and_a_bug_is_reported_as_one() -> None:
    def raises() -> Finding:
        raise CapacityError("no room", hint="make some", details="line by line")

    def breaks() -> Finding:
        raise KeyError("zone")

    ours, bug = run_checks([Check(name="ours", run=raises), Check(name="bug", run=breaks)])
    assert (ours.message, ours.hint, ours.details) == ("no room", "make some", "line by line")
    assert ours.exit_code is ExitCode.CAPACITY
    assert bug.exit_code is ExitCode.BUG
    assert "KeyError: 'zone'" in bug.message


def test_the_first_failure_that_blocks_is_raised_as_what_it_is() -> None:
    said: list[str] = []
    checks = [
        Check(name="permissions", run=refuse(CredentialsError), blocks=False),
        Check(name="machine", run=lambda: warning("slow", hint="take less")),
        Check(name="quota", run=lambda: failed("no quota", hint="ask for more", error=CapacityError, details="x")),
        Check(name="bucket", run=refuse(UsageError)),
    ]
    with pytest.raises(CapacityError, match="no quota") as raised:
        require(checks, warn=said.append)
    assert (raised.value.hint, raised.value.details) == ("ask for more", "x")
    assert said == []


def test_what_does_not_block_is_warned_of() -> None:
    said: list[str] = []
    require([Check(name="permissions", run=refuse(CredentialsError), blocks=False)], warn=said.append)
    assert said == ["it is not; fix it"]


def test_neither_silence_nor_a_bug_stops_a_command(hang: Callable[[], Finding]) -> None:
    said: list[str] = []

    def breaks() -> Finding:
        raise KeyError("zone")

    checks = [
        Check(name="bucket", run=hang),
        Check(name="quota", run=refuse(NoAnswerError)),
        Check(name="x", run=breaks),
    ]
    require(checks, warn=said.append, seconds=0.2)
    assert [text.partition(":")[0] for text in said] == ["check bucket", "check quota", "check x"]
    assert "did not answer within 0.2 s" in said[0]


@pytest.mark.parametrize("error", [None, CapacityError("it is full", hint="wait")])
def test_what_several_checks_need_is_asked_once(error: HvdcloudError | None) -> None:
    asked: list[int] = []

    def ask() -> Finding:
        asked.append(1)
        time.sleep(0.2)  # The other checks come meanwhile.
        if error is not None:
            raise error
        return fine("it is there")

    once = Once(ask)
    found = run_checks([Check(name=str(number), run=once) for number in range(4)])
    assert {each.message for each in found} == {"it is full" if error else "it is there"}
    assert len(asked) == 1
