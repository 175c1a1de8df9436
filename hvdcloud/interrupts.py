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

    What the first one makes us clean up is thus not cut short by a second one, nor is the message that says so: after
    the first one they stay ignored, since the command is on its way out.
    """
    interrupted = False

    def once(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        _handle_by(signal.SIG_IGN)
        raise KeyboardInterrupt

    before = _handle_by(once)
    try:
        yield
    finally:
        if not interrupted:
            _restore(before)


@contextlib.contextmanager
def uninterrupted(tell: Callable[[], object] | None = None) -> Iterator[None]:
    """In this block `SIGNALS` are ignored: stopping half-way would leave machines behind, and it has a deadline.

    `tell` says so to the user when the first of them arrives; it is called in a thread of its own.
    """

    def ignore(number: int, frame: FrameType | None) -> None:
        _handle_by(signal.SIG_IGN)
        if tell is not None:
            # Not here: what it prints with may be locked by the very code that this signal has interrupted.
            threading.Thread(target=tell, daemon=True).start()

    before = _handle_by(ignore if tell else signal.SIG_IGN)
    try:
        yield
    finally:
        _restore(before)


def stay_uninterrupted() -> None:
    """From now on `SIGNALS` are ignored: all that is left to do is to say how the command ended."""
    _handle_by(signal.SIG_IGN)


def _handle_by(handler: _Handler) -> list[tuple[signal.Signals, _Handler | int | None]]:
    """Returns what handled them before."""
    if threading.current_thread() is not threading.main_thread():
        return []  # No signal is delivered here, and none may be handled.
    return [(number, signal.signal(number, handler)) for number in SIGNALS]


def _restore(before: list[tuple[signal.Signals, _Handler | int | None]]) -> None:
    for number, handler in before:
        signal.signal(number, handler)
