"""Attempts to log in at an sshd, which may be busy or still starting."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import Retrying, retry_base

_PAUSE_SECONDS = 0.5


def login_attempts(retry: retry_base, *, seconds: float, closing: Event) -> Retrying:
    """What calls a function again until it succeeds, for so many seconds or until `closing` is set; the last error is
    raised as it is.

    Args:
        retry: tenacity's condition for another attempt.
    """
    from tenacity import Retrying, sleep_using_event, stop_after_delay, stop_when_event_set, wait_fixed

    return Retrying(
        retry=retry,
        stop=stop_after_delay(seconds) | stop_when_event_set(closing),
        wait=wait_fixed(_PAUSE_SECONDS),
        sleep=sleep_using_event(closing),
        reraise=True,
    )
