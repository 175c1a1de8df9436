"""Ctrl-C, a closed terminal or a `kill` while machines are made or deleted."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""All of them mean the same: end this command, and leave things in order."""

_Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """In this block the first of `SIGNALS` raises KeyboardInterrupt and those after it are ignored.

    What the first one makes us clean up is thus not cut short by a second one.
    """

    def once(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    with _handled_by(once):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """In this block `SIGNALS` are ignored: stopping half-way would leave machines behind, and it has a deadline."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: _Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # No signal is delivered here.
        return
    before = [(number, signal.signal(number, handler)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, previous in before:
            signal.signal(number, previous)
