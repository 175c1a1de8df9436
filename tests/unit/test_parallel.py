"""The same call for several things at once, and what becomes of the calls when one fails or the user interrupts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hvdcloud.parallel import side_by_side


class InterruptedAtTheSecond(list[int]):
    """Ctrl-C comes when one call has begun and the next has not."""

    def __iter__(self) -> Iterator[int]:
        yield self[0]
        raise KeyboardInterrupt


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An answer that does not come during the test."""
    answered = threading.Event()
    yield answered
    answered.set()


def test_results_come_in_the_order_of_the_items_whichever_was_first() -> None:
    def slept(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    assert side_by_side(slept, [0.2, 0.0, 0.1]) == [0.2, 0.0, 0.1]
    assert side_by_side(str, []) == []


def test_who_interrupts_while_the_calls_begin_does_not_wait_for_an_answer(never: threading.Event) -> None:
    with pytest.raises(KeyboardInterrupt):
        side_by_side(lambda _: never.wait(20), InterruptedAtTheSecond([1, 2, 3]), only_reads=True)


def test_calls_that_change_something_are_told_to_end_and_waited_for(never: threading.Event) -> None:
    ended: list[int] = []

    def change(item: int) -> None:
        assert never.wait(20)
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(change, InterruptedAtTheSecond([1, 2, 3]), on_abort=never.set)
    assert ended == [1]


def test_a_call_whose_thread_was_being_started_is_waited_for(
    never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thread.start waits until the thread runs: there Ctrl-C comes most likely, and the pool knows it only then."""
    begun = threading.Event()
    ended: list[int] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        assert begun.wait(20)
        raise KeyboardInterrupt

    def change(item: int) -> None:
        begun.set()
        assert never.wait(20)
        time.sleep(0.05)
        ended.append(item)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(change, [1], on_abort=never.set)
    assert ended == [1]


def test_the_failure_of_the_first_item_counts_and_the_others_are_told_to_end(never: threading.Event) -> None:
    def fail(item: int) -> None:
        if item:
            raise ValueError(item)
        assert never.wait(20)

    with pytest.raises(ValueError, match="1"):
        side_by_side(fail, [0, 1], on_abort=never.set)
