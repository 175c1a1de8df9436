"""What a person is told of a run that has ended, and the POST that tells it. Copied into the image, for the head."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hvdcloud.errors import UsageError
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.state import RunState
from hvdcloud.units import counted, seconds
from hvdcloud.visible import visible, words

ANSWER_SECONDS = 30.0
ATTEMPTS = 6
PAUSE_FACTOR = 1.0
"""Seconds: after the first attempts there are pauses of 0, 2, 4, 8 and 16 times this."""


def address_problem(address: str) -> str:
    """Why nothing can be sent to an address; empty: something can. The address is a secret and not a part of it."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme == "https" and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[\x21-\x7e]{1,2000}", address):
        return "is not an https:// address"
    return "has a user name or a password in it" if "@" in parts.netloc else ""


def address_in(variable: str) -> str:
    """The address that a variable of the environment holds, a secret; raises UsageError: it holds none."""
    value = os.environ.get(variable)
    problem = "is not set in this environment" if value is None else address_problem(value)
    if value is None or problem:
        hint = f"export {variable}=https://…, or take notify out of hvdcloud.yaml"
        raise UsageError(f"notify: the variable {variable} {problem}", hint=hint)
    return value


def message(state: RunState, *, log: bytes = b"") -> dict[str, Any]:
    """The JSON object about a run that has ended: `text`, which Slack shows, and the same for programs.

    Args:
        log: its end, which may say more of a rank's failure than the state does.
    """
    reader = LogReader(elastic=state.elastic is not None)
    reader.feed(log)
    failure = reader.failure(state)
    # Of a rank's end, its log says more: the exception and its lines.
    known = failure is not None and any(record.text == state.reason for record in state.ranks)
    reason = visible(words(failure.reason if failure is not None and known else state.reason))
    result, took = visible(words(state.result)), None
    headline = f"{state.cluster}: run {state.run} {result or 'has ended'}"
    if state.ended and state.started:
        took = state.ended - state.started
        headline += f" after {seconds(took)}"
    parts = [headline + (f": {reason}" if reason and result != "succeeded" else "")]
    if reader.metrics:
        parts.append(", ".join(f"{name} {value:.4g}" for name, value in reader.metrics.items()))
    if state.ended:
        where = "all in the bucket" if state.checkpoints.complete else "NOT all in the bucket"
        parts.append(f"{counted(state.checkpoints.files, 'file')} of checkpoints, {where}")
    parts.append(f"hvdcloud report {state.run} --name {state.cluster}")
    text = " · ".join(parts)
    return {
        # https://docs.slack.dev/messaging/formatting-message-text: three characters are escaped.
        "text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
        "cluster": state.cluster,
        "run": state.run,
        "result": result,
        "exit_code": state.exit_code,
        "reason": reason,
        "seconds": took,
        "checkpoints_complete": state.checkpoints.complete if state.ended else None,
        "metrics": dict(reader.metrics),
    }


def send(address: str, body: Mapping[str, Any], *, attempts: int = ATTEMPTS) -> str:
    """POST a message; returns why it was not taken, without the address, or "" where it was."""
    import ssl

    import certifi
    import urllib3

    # Its warnings name the address.
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    again = urllib3.Retry(
        total=attempts - 1,
        read=0,  # The server may have the message, and would get it twice.
        other=0,
        status_forcelist={408, 425, 429, 500, 502, 503, 504},
        allowed_methods=None,
        backoff_factor=PAUSE_FACTOR,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    tls = ssl.create_default_context()
    # An image of one's own may have no CA certificates.
    tls.load_verify_locations(certifi.where())
    limits = urllib3.Timeout(connect=10.0, read=ANSWER_SECONDS)
    pool = urllib3.PoolManager(ssl_context=tls, retries=again, timeout=limits)
    headers = {"Content-Type": "application/json", "User-Agent": "hvdcloud"}
    content = json.dumps(body).encode()
    try:
        answer = pool.request("POST", address, body=content, headers=headers, redirect=False, preload_content=False)
    except urllib3.exceptions.HTTPError as error:
        # In its words there is the address.
        return f"the server could not be reached ({type(getattr(error, 'reason', None) or error).__name__})"
    answer.close()
    return "" if 200 <= answer.status < 300 else f"the server answered HTTP {answer.status}"
