"""Many reads in one HTTP request: the API's batch endpoint, and the pace at which it may be used.

One POST of `multipart/mixed` carries up to 1,000 calls, each of which counts against the project's rate on its own
(https://cloud.google.com/compute/docs/api/how-tos/batch). Google's client library has no method for it.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from email import message_from_bytes

from hvdcloud.google.errors import ApiError
from hvdcloud.google.http import Answer

PATH = "/batch/compute/v1"
"""`batchPath` of the discovery document."""
MAX_CALLS = 100
"""In one request: few enough that an answer which is lost costs little."""
REFUSED = frozenset({404, 405, 501})
"""Statuses of a server that has no batch endpoint."""

_NUMBER = re.compile(r"<response-(\d+)>")
_STATUS = re.compile(rb"HTTP/\S+ (\d{3})\b")


def encode(paths: Sequence[str]) -> tuple[str, bytes]:
    """One GET for each path, as (content type, body). Pure but for the boundary."""
    boundary = f"hvdcloud-{uuid.uuid4().hex}"
    parts = [
        f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n"
        f"GET {path} HTTP/1.1\r\nAccept: application/json\r\n\r\n\r\n"
        for number, path in enumerate(paths)
    ]
    return f"multipart/mixed; boundary={boundary}", "".join([*parts, f"--{boundary}--\r\n"]).encode()


def decode(answer: Answer, *, calls: int) -> list[Answer]:
    """The answers in the order of the calls, which may not be the order they came in.

    Raises:
        ApiError: one of the calls has no answer; worth another try.
    """
    header = f"Content-Type: {answer.content_type}\r\n\r\n".encode("latin-1")
    answers = {}
    for part in message_from_bytes(header + answer.body).walk():
        number = _NUMBER.fullmatch(str(part["Content-ID"]))
        payload = part.get_payload(decode=True)
        if number and isinstance(payload, bytes) and (status := _STATUS.match(payload)):
            body = payload.replace(b"\r\n", b"\n").partition(b"\n\n")[2]
            answers[int(number[1])] = Answer(int(status[1]), "application/json", body)
    if sorted(answers) != list(range(calls)):
        raise ApiError(
            message=f"a batch of {calls} calls was answered with {len(answers)}", status=502, reason="incompleteBatch"
        )
    return [answers[number] for number in range(calls)]


class TokenBucket:
    """Limits a rate. May be used from several threads.

    Args:
        burst: how many may go at once when nothing went for a while.
        per_second: how many are added each second.
        now: the clock, in seconds.
        sleep: waits for this many seconds.
    """

    def __init__(
        self,
        *,
        burst: int,
        per_second: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._now, self._sleep = now, sleep
        self._counted = now()

    def take(self, count: int) -> None:
        """Wait until `count` may go; turns come in the order of asking."""
        with self._lock:
            now = self._now()
            self._tokens = min(float(self._burst), self._tokens + (now - self._counted) * self._per_second) - count
            self._counted = now
            wait = -self._tokens / self._per_second
        if wait > 0:
            self._sleep(wait)
