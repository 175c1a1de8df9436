"""The messages about a run that nobody watches, as they are sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.runs.notice import (
    EVENTS,
    KINDS,
    TEST,
    Notice,
    Settings,
    address_problem,
    cost_instant,
    event_of,
    last_lines,
)
from hvdcloud.runs.stacks import Stuck
from hvdcloud.runs.state import About, RunState

GOLDEN = Path(__file__).parents[1] / "golden" / "notices.json"
RUN = "20261121-101112-abcdef"
HOSTILE = b"""\
[0] epoch 1/3: loss 0.5
[0] progress 10%\r[0] progress 100%
[1] \x1b[31mred\x1b[0m \x1b]0;title\x07 \xe2\x80\xae txet
[1] <!channel> <https://evil.example|click> & "quotes" ``` `code` @here
[launcher] {"text": "\\u0000"} \xff\xfe


"""
STUCK = Stuck(seconds=1800.0)
ABOUT = {"dollars_per_hour": 3.6, "dollars_before": 1.0, "seen": 1_000_000.0}


def notice(event: str, **changes: Any) -> Notice:
    """Of a run that began at 1,000,000 and ended 12 minutes later."""
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
        "about": ABOUT,
        **changes,
    }
    settings = Settings(addresses={}, on=EVENTS, max_cost=2.0, bucket="gs://my-bucket/a b")
    return Notice.of(RunState.from_json(found), event=event, settings=settings, log=HOSTILE, now=1_000_720.0)


NOTICES = {
    "succeeded": notice("end", result="succeeded", exit_code=0, reason="", about={}),
    "stopped": notice("end", result="stopped", exit_code=None, reason="", checkpoints={}),
    "failed": notice("failed"),
    "stuck": notice("stuck", exit_code=None, reason=STUCK.text, ranks=[], stuck=STUCK.to_json()),
    "lost": notice("lost", result="lost", exit_code=None, checkpoints={"files": 3}),
    "cost": notice("cost", state="running", result="", exit_code=None, reason="", ended=None),
    "test": Notice(event=TEST, cluster="digits", run=""),
}


def test_the_messages_are_those_that_were_agreed() -> None:
    """Who reads them by a program relies on their keys; the file changes with a reason only."""
    sent = {name: {kind: each.body(kind) for kind in KINDS} for name, each in NOTICES.items()}
    assert json.loads(json.dumps(sent)) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_a_run_that_was_stuck_is_told_as_failed_where_only_that_is_asked_for() -> None:
    stuck = RunState.from_json({"run": RUN, "result": "failed", "stuck": STUCK.to_json()})
    assert event_of(stuck) == "stuck"
    assert event_of(stuck, on=["failed"]) == "failed"
    assert event_of(RunState.from_json({"run": RUN, "result": "failed"})) == "failed"


@pytest.mark.parametrize("name", NOTICES)
def test_what_a_job_prints_stays_text(name: str) -> None:
    webhook, slack = (NOTICES[name].body(kind) for kind in KINDS)
    assert all(line.isprintable() and len(line) <= 301 for line in webhook.get("last_lines", ()))
    text = slack["text"]
    # Nothing mentions a channel or shows another address than it leads to, and the block ends where it should.
    assert "<!" not in text
    assert "<https://evil" not in text
    assert text.count("```") in (0, 2)
    assert json.loads(json.dumps(slack)) == slack


@pytest.mark.parametrize("key", ["result", "reason"])
def test_what_a_state_in_the_bucket_says_of_an_end_acts_on_nothing(key: str) -> None:
    told = notice("end" if key == "result" else "failed", **{key: "\x1b]52;c;AAAA\x07"}, ranks=[])
    assert "\\x1b]52;c;AAAA\\x07" in told.headline
    assert told.headline.isprintable()


def test_only_the_last_lines_that_say_something_are_sent() -> None:
    lines = last_lines(b"".join(b"line %d\n\n" % number for number in range(100)))
    assert lines == [f"line {number}" for number in range(85, 100)]
    assert last_lines(b"") == []
    assert last_lines(b"x" * 5000) == ["x" * 300 + "…"]


def test_a_failure_is_told_as_run_shows_it_not_as_horovod_does() -> None:
    log = (
        b"[0] epoch 3/9: loss 0.25, accuracy 0.5\n[1] Traceback (most recent call last):\n"
        b'[1]   File "/workspace/train.py", line 12, in step\n[1]     raise ValueError("my bug")\n'
        b"[1] ValueError: my bug\n" + b"[launcher] Traceback, line of horovodrun\n" * 30
    )
    ended = {"rank": 1, "node": "digits-1", "exit_code": 1, "signal": None, "terminated": False}
    reason = "rank 1 on digits-1 exited with 1"
    found = {"run": RUN, "cluster": "digits", "state": "done", "result": "failed", "reason": reason, "ranks": [ended]}
    settings = Settings(addresses={}, on=EVENTS)
    told = Notice.of(RunState.from_json(found), event="failed", settings=settings, log=log, now=0.0)
    assert told.reason == "rank 1 (digits-1) raised ValueError: my bug (train.py:12)"
    assert told.last_lines[-1] == "ValueError: my bug"
    assert told.metrics == {"loss": 0.25, "accuracy": 0.5}
    assert last_lines(log)[-1] == "[1] ValueError: my bug"
    assert last_lines(b"[launcher] no rank said anything\n") == ["[launcher] no rank said anything"]


@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.slack.com/services/T0/B0/x",
        "https://example.com:8443/a?b=c",
        "http://127.0.0.1:8080/hook",
        "http://localhost/hook",
        "http://[::1]:1/",
    ],
)
def test_an_address_is_https_or_of_this_machine(address: str) -> None:
    assert address_problem(address) == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "is not an https:// address"),
        ("http://example.com/hook", "is an http:// address; only https:// is encrypted"),
        ("http://127.0.0.1.example.com/", "is an http:// address; only https:// is encrypted"),
        ("https://user:password@proxy.example.com", "has a user name or a password in it"),
        ("https://token@github.com/x", "has a user name or a password in it"),
        ("ftp://example.com/", "is not an https:// address"),
        ("file:///etc/passwd", "is not an https:// address"),
        ("https://", "is not an https:// address"),
        ("https:///path", "is not an https:// address"),
        ("https://example.com:99999/", "is not the address of a web page"),
        ("https://example.com:0/", "is not an https:// address"),
        ("https://[::1/", "is not the address of a web page"),
        ("https://example.com/\r\nX-Evil: 1", "is not the address of a web page"),
        ("https://exämple.com/", "is not the address of a web page"),
        (f"https://example.com/{'x' * 3000}", "is not the address of a web page"),
        ("", "is not an https:// address"),
    ],
)
def test_what_a_strangers_file_may_name_is_no_address_and_is_not_said(value: str, problem: str) -> None:
    assert address_problem(value) == problem
    assert Settings.from_json({"addresses": {"webhook": value}, "on": ["end"]}).addresses == {}


@pytest.mark.parametrize("sent", [None, [], "x", {"addresses": 1, "on": 2}, {"on": ["end", "other", 3]}])
def test_settings_of_another_version_are_read_as_far_as_they_are_known(sent: object) -> None:
    settings = Settings.from_json(sent)
    assert settings.addresses == {}
    assert set(settings.on) <= {"end"}


def test_settings_arrive_as_they_were_sent() -> None:
    sent = Settings(addresses={"slack": "https://a/b"}, on=["end", "cost"], max_cost=10.0, bucket="gs://b")
    assert Settings.from_json(json.loads(json.dumps(sent.to_json()))) == sent


def test_the_notice_of_the_cost_is_due_at_80_percent_of_the_limit() -> None:
    about = About.from_json(ABOUT)
    # $1.00 had been spent, $3.60 are spent each hour: $8.00 after 7/3.6 h.
    assert cost_instant(about, max_cost=10.0) == pytest.approx(1_000_000 + 7 / 3.6 * 3600)
    assert cost_instant(about, max_cost=None) is None
    assert cost_instant(About(), max_cost=10.0) is None
    assert NOTICES["cost"].dollars == pytest.approx(1.0 + 3.6 * 720 / 3600)
