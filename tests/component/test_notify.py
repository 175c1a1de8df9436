"""A person is told how a run ended, whatever the server does, and never with harm to the run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checks import Status, run_checks
from hvdcloud.config.model import Config
from hvdcloud.doctor.machine import project_checks
from hvdcloud.errors import UsageError
from hvdcloud.node import notify, paths
from hvdcloud.runs import notice
from hvdcloud.runs.notice import address_in, send
from tests.standins.webhook import TOKEN, Webhook, webhook
from tests.support.harness import DEADLINE, until
from tests.support.nodes import AT_WORK, RUN, NodeCluster, node_cluster, wait_gone

BODY = {"text": "digits: run failed"}
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "PAUSE_FACTOR", 0.001)
    monkeypatch.setattr(notice, "ANSWER_SECONDS", 0.3)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """A server whose certificate is trusted, also on the nodes."""
    with webhook() as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        yield server


@pytest.fixture
def cluster(hook: Webhook) -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def test_a_message_that_is_not_taken_is_sent_again_and_taken_once(hook: Webhook) -> None:
    hook.answers = [500, 429]
    assert send(hook.url, BODY) == ""
    assert len(hook.got) == 3
    path, headers, body = hook.got[-1]
    assert path == f"/services/{TOKEN}"
    assert headers["content-type"] == "application/json"
    assert body == BODY


def test_a_certificate_that_cannot_be_verified_gets_nothing() -> None:
    with webhook() as hook:
        assert send(hook.url, BODY) == "the server could not be reached (SSLError)"
    assert hook.got == []


def told(hook: Webhook) -> dict[str, Any]:
    """The message, once it has come."""
    until(lambda: hook.messages, what="a message")
    (message,) = hook.messages
    return message


def notify_files(cluster: NodeCluster) -> list[Path]:
    return list(cluster.base.glob("*/run/hvdcloud/*/notify.json"))


def test_the_head_tells_how_a_run_ended_and_forgets_where(cluster: NodeCluster, hook: Webhook) -> None:
    hook.answers = [500]
    script = "import os, pathlib; pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'], 'x.pt').touch(); print('trains')"
    cluster.start_run(script, notify=hook.url)
    cluster.wait_done()
    # The laptop asks for this before it deletes the nodes.
    assert cluster.verb("n0", "flush") == {"runs": {}}
    assert (len(hook.got), notify_files(cluster)) == (2, [])
    message = hook.messages[1]
    assert (message["result"], message["exit_code"], message["checkpoints_complete"]) == ("succeeded", 0, True)
    assert message["text"].startswith(f"digits: run {RUN} succeeded after ")
    lines = (cluster.run_dir() / "events.jsonl").read_text().splitlines()
    assert [event["event"] for event in map(json.loads, lines)].count("told") == 1
    wait_gone([cluster.supervisor(), cluster.agent("n0"), cluster.agent("n1")])
    assert {
        path.name for name in cluster.names for path in (cluster.root(name) / "run/hvdcloud").glob("2*-??????")
    } == set()


def test_the_address_is_nowhere_but_in_a_file_in_memory_of_the_heads_root(cluster: NodeCluster, hook: Webhook) -> None:
    cluster.start_run(AT_WORK, notify=hook.url)
    cluster.wait_for_log("at work", times=2)
    (file,) = notify_files(cluster)
    assert file.is_relative_to(cluster.root("n0"))
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)

    def holding() -> set[Path]:
        files = (path for path in cluster.base.rglob("*") if path.is_file() and not path.is_symlink())
        return {path for path in files if TOKEN.encode() in path.read_bytes()}

    assert holding() == {file}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        assert TOKEN.encode() not in seen, process
    assert TOKEN not in str(cluster.verb("n0", "stop", RUN))
    assert told(hook)["result"] == "stopped"
    until(lambda: not notify_files(cluster), what="the end of the address on the head")
    assert holding() == set()


def test_deleting_nodes_waits_for_the_message_but_not_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.ROOT_VARIABLE, str(tmp_path))
    file = paths.notify_file(RUN)
    file.parent.mkdir(parents=True)
    file.touch()
    notify.wait_told(RUN, seconds=0.2)
    assert file.exists()
    threading.Timer(0.2, file.unlink).start()
    notify.wait_told(RUN, seconds=DEADLINE)
    assert not file.exists()


@pytest.mark.parametrize(
    ("value", "problem"), [(None, "is not set in this environment"), (SECRET, "is not an https:// address")]
)
def test_a_variable_that_a_strangers_file_names_is_neither_contacted_nor_shown(
    value: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"name": "digits", "notify": "HOOK"})
    monkeypatch.delenv("HOOK", raising=False)
    if value is not None:
        monkeypatch.setenv("HOOK", value)
    with pytest.raises(UsageError) as raised:
        address_in("HOOK")
    assert raised.value.message == f"notify: the variable HOOK {problem}"
    assert raised.value.hint == "export HOOK=https://…, or take notify out of hvdcloud.yaml"
    (check,) = (each for each in project_checks(config) if each.name == "notify")
    (finding,) = run_checks([check])
    assert finding.status is Status.FAILED
    assert SECRET[:10] not in f"{finding}{raised.value}"
