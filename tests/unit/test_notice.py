"""`notify`: where the end of a run may be told, and the message, as it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import UsageError
from hvdcloud.runs.notice import address_problem, message
from hvdcloud.runs.state import RunState
from tests.support.configs import load_config

ADDRESS = "https://hooks.slack.com/services/T0/B0/hunter2"
RUN = "20261121-101112-abcdef"


def told(*, log: bytes = b"", **changes: Any) -> dict[str, Any]:
    """Of a run that took 12 minutes."""
    found = {
        "run": RUN,
        "cluster": "digits",
        "state": "done",
        "result": "failed",
        "exit_code": 3,
        "reason": "rank 1 on digits-1 exited with 3",
        "ranks": [{"rank": 1, "node": "digits-1", "exit_code": 3, "signal": None, "terminated": False}],
        "started": 1_000_000.0,
        "ended": 1_000_720.0,
        "checkpoints": {"files": 12, "complete": True},
        **changes,
    }
    return message(RunState.from_json(found), log=log)


def test_the_message_has_a_text_for_people_and_the_same_for_programs() -> None:
    log = b"[0] epoch 3/9: loss 0.25, accuracy 0.5\n"
    assert told(log=log, result="succeeded", exit_code=0, reason="", ranks=[]) == {
        "text": f"digits: run {RUN} succeeded after 12 min 00 s · loss 0.25, accuracy 0.5 · "
        f"12 files of checkpoints, all in the bucket · hvdcloud report {RUN} --name digits",
        "cluster": "digits",
        "run": RUN,
        "result": "succeeded",
        "exit_code": 0,
        "reason": "",
        "seconds": 720.0,
        "checkpoints_complete": True,
        "metrics": {"loss": 0.25, "accuracy": 0.5},
    }


@pytest.mark.parametrize("key", ["result", "reason"])
def test_what_a_job_says_acts_on_no_terminal_and_calls_nobody(key: str) -> None:
    said: dict[str, Any] = {key: "\x1b]52;c;AAAA\x07 <!channel> <https://evil.example|click>"}
    sent = told(**said, ranks=[])
    assert "\\x1b]52;c;AAAA\\x07" in sent["text"]
    assert sent["text"].isprintable()
    assert "<" not in sent["text"]
    assert "&lt;!channel&gt;" in sent["text"]


@pytest.mark.parametrize("address", [ADDRESS, "https://example.com:8443/a?b=c", "https://127.0.0.1/hook"])
def test_an_address_is_https(address: str) -> None:
    assert address_problem(address) == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "is not an https:// address"),
        ("http://example.com/hook", "is not an https:// address"),
        ("https://user:password@proxy.example.com", "has a user name or a password in it"),
        ("file:///etc/passwd", "is not an https:// address"),
        ("https://", "is not an https:// address"),
        ("https://example.com:99999/", "is not an https:// address"),
        ("https://example.com:0/", "is not an https:// address"),
        ("https://[::1/", "is not an https:// address"),
        ("https://example.com/\r\nX-Evil: 1", "is not an https:// address"),
        ("https://exämple.com/", "is not an https:// address"),
        (f"https://example.com/{'x' * 3000}", "is not an https:// address"),
    ],
)
def test_what_a_strangers_file_may_name_is_no_address_and_is_not_said(value: str, problem: str) -> None:
    assert address_problem(value) == problem


@pytest.mark.parametrize("text", [f"'{ADDRESS}'", f"['{ADDRESS}']", f"{{webhook: '{ADDRESS}'}}"])
def test_an_address_in_the_file_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "hvdcloud.yaml").write_text(f"name: digits\nnotify: {text}\n")
    with pytest.raises(UsageError) as raised:
        load_config(tmp_path / "hvdcloud.yaml", environ={})
    assert "notify" in raised.value.message
    assert "hunter2" not in f"{raised.value.message}{raised.value.hint}{raised.value.details}"
