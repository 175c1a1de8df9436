"""Ctrl-C while machines are deleted is ignored, and said to be."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from hvdcloud.interrupts import SIGNALS, interrupted_once, uninterrupted


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_ctrl_c_of_those_that_are_ignored_is_answered() -> None:
    told = threading.Semaphore(0)
    with uninterrupted(told.release):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert told.acquire(timeout=300)
        assert not told.acquire(timeout=0.1), "once is enough"


def test_what_answers_may_need_a_lock_that_the_interrupted_code_holds() -> None:
    lock, told = threading.Lock(), threading.Event()

    def tell() -> None:
        with lock:
            told.set()

    with uninterrupted(tell):
        with lock:
            signal.raise_signal(signal.SIGINT)
            assert not told.is_set()
        assert told.wait(60)


def test_the_next_ctrl_c_after_the_block_counts_again() -> None:
    with interrupted_once():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
