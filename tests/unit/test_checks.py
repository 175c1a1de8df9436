"""Checks run side by side, wait only for what they need, and never forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from hvdcloud.checks import Check, Checked, Finding, Once, Status, failed, fine, run_checks, unknown, warning
from hvdcloud.errors import CapacityError, CredentialsError, ExitCode, UsageError


def refuse(error: type[CredentialsError | UsageError | CapacityError]) -> Callable[[], Finding]:
    return lambda: failed("it is not", hint="fix it", error=error)


def by_name(found: list[Checked]) -> dict[str, Checked]:
    return {each.name: each for each in found}


def test_checks_that_do_not_need_each_other_run_at_the_same_time() -> None:
    # Each of them ends only if all of them have begun.
    all_there = threading.Barrier(8)

    def look() -> Finding:
        all_there.wait(timeout=10)
        return fine("met the others")

    found = run_checks([Check(name=str(number), run=look) for number in range(8)])
    assert [check.name for check in found] == [str(number) for number in range(8)]
    assert all(check.status is Status.OK for check in found)


def test_a_check_begins_when_what_it_needs_is_over_and_not_when_everything_is() -> None:
    slow_may_end = threading.Event()
    order: list[str] = []

    def slow() -> Finding:
        assert slow_may_end.wait(10)
        order.append("slow")
        return fine("")

    def second() -> Finding:
        order.append("second")
        slow_may_end.set()
        return fine("")

    checks = [
        Check(name="slow", run=slow),
        Check(name="second", run=second, needs=("first",)),
        Check(name="first", run=lambda: fine("")),
    ]
    assert [check.status for check in run_checks(checks)] == [Status.OK] * 3
    assert order == ["second", "slow"]


def test_what_needs_a_failed_check_is_not_done_and_neither_is_what_needs_that() -> None:
    def never() -> Finding:
        raise AssertionError("it was done")

    found = by_name(
        run_checks(
            [
                Check(name="credentials", run=refuse(CredentialsError)),
                Check(name="bucket", run=never, needs=("credentials",)),
                Check(name="files", run=never, needs=("bucket",)),
                Check(name="ssh", run=lambda: fine("there")),
            ]
        )
    )
    assert found["bucket"].status is found["files"].status is Status.UNKNOWN
    assert found["bucket"].message == "not checked: no credentials"
    assert found["bucket"].exit_code is ExitCode.OK
    assert found["ssh"].status is Status.OK


def test_a_warning_keeps_nothing_from_being_checked() -> None:
    checks = [
        Check(name="one", run=lambda: warning("so so", hint="look")),
        Check(name="two", run=lambda: fine("done"), needs=("one",)),
    ]
    assert by_name(run_checks(checks))["two"].message == "done"


def test_a_check_that_does_not_answer_holds_nothing_up() -> None:
    never = threading.Event()

    def hang() -> Finding:
        never.wait()
        return fine("too late")

    began = time.monotonic()
    checks = [
        Check(name="hangs", run=hang),
        Check(name="hangs too", run=hang),
        Check(name="well", run=lambda: fine("")),
        Check(name="needs it", run=lambda: fine(""), needs=("hangs",)),
    ]
    found = by_name(run_checks(checks, seconds=0.2))
    took = time.monotonic() - began
    never.set()
    assert found["hangs"].message == found["hangs too"].message == "did not answer within 0.2 s"
    assert found["hangs"].exit_code is ExitCode.NODE
    assert found["well"].status is Status.OK
    assert found["needs it"].message == "not checked: no hangs"
    assert took < 5, "as long as one of them, not as long as a test may take"


def test_the_same_trouble_is_reported_once() -> None:
    def looks_at_apis(error: type[CredentialsError | CapacityError]) -> Checked:
        checks = [
            Check(name="APIs", run=refuse(CredentialsError)),
            Check(name="zones", run=refuse(error), explained_by=("APIs",)),
        ]
        return by_name(run_checks(checks))["zones"]

    assert (looks_at_apis(CredentialsError).status, looks_at_apis(CredentialsError).message) == (
        Status.UNKNOWN,
        "not checked: see APIs",
    )
    assert looks_at_apis(CapacityError).exit_code is ExitCode.CAPACITY, "another kind of trouble is another trouble"


def test_without_the_thing_itself_nothing_that_is_said_of_it_counts() -> None:
    found = by_name(
        run_checks(
            [
                Check(name="project", run=refuse(CredentialsError)),
                Check(name="quota", run=refuse(CapacityError), moot_without=("project",)),
                Check(name="billing", run=lambda: unknown("who?", error=UsageError), moot_without=("project",)),
                Check(name="account", run=lambda: fine("there"), moot_without=("project",)),
            ]
        )
    )
    assert found["quota"].message == found["billing"].message == "not checked: see project"
    assert found["account"].status is Status.OK


def test_an_error_is_a_failure_with_its_hint_and_a_bug_is_reported_as_one() -> None:
    def raises() -> Finding:
        raise CapacityError("no room", hint="make some", details="line by line")

    def breaks() -> Finding:
        raise KeyError("zone")

    ours, bug = run_checks([Check(name="ours", run=raises), Check(name="bug", run=breaks)])
    assert (ours.message, ours.hint, ours.details, ours.exit_code) == (
        "no room",
        "make some",
        "line by line",
        ExitCode.CAPACITY,
    )
    assert bug.exit_code is ExitCode.BUG
    assert "KeyError: 'zone'" in bug.message


def test_an_answer_that_several_need_is_asked_for_once_and_so_is_an_error() -> None:
    asked: list[str] = []

    def make() -> str:
        asked.append("")
        return "answer"

    def refused() -> str:
        asked.append("")
        raise UsageError("no", hint="fix it")

    once = Once(make)
    found = run_checks([Check(name=str(number), run=lambda: fine(once())) for number in range(5)])
    assert [check.message for check in found] == ["answer"] * 5
    assert len(asked) == 1
    never = Once(refused)
    found = run_checks([Check(name=str(number), run=lambda: fine(never())) for number in range(5)])
    assert [check.exit_code for check in found] == [ExitCode.USAGE] * 5
    assert len(asked) == 2


def test_checks_that_wait_for_each_other_are_a_mistake_of_ours() -> None:
    checks = [
        Check(name="a", run=lambda: fine(""), needs=("b",)),
        Check(name="b", run=lambda: fine(""), needs=("a",)),
    ]
    with pytest.raises(AssertionError, match="wait for each other"):
        run_checks(checks)


def test_a_check_may_refer_to_one_that_another_provider_has() -> None:
    (found,) = run_checks([Check(name="GPU", run=lambda: fine("no GPU"), explained_by=("machine",))])
    assert (found.status, found.message) == (Status.OK, "no GPU")
