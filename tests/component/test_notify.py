"""A person is told of a run: once, whatever the server does, and never with harm to the run."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checks import Status
from hvdcloud.config.model import Config
from hvdcloud.config.notify import NotifyConfig
from hvdcloud.config.retry import RetryConfig
from hvdcloud.doctor.machine import project_checks
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.lifecycle import logs, notify
from hvdcloud.node import paths
from hvdcloud.node.notify import post, tell
from hvdcloud.node.notify.post import send
from hvdcloud.node.uploads import drain
from hvdcloud.runs.notice import EVENTS, Notice, Settings
from hvdcloud.storage.folder import FolderBucket
from tests.standins.metadata.preemption import notices
from tests.standins.registry import free_port
from tests.standins.webhook import TOKEN, Webhook, webhook
from tests.support.harness import until
from tests.support.nodes import AT_WORK, RUN, NodeCluster, node_cluster, wait_gone
from tests.support.vanishing import RUN as VANISHED
from tests.support.vanishing import Laptop, Machines, NewVm, Vm

NOTICE = Notice(
    event="failed", cluster="digits", run=RUN, result="failed", reason="rank 0 exited with 1", last_lines=["x"]
)
SECONDS = 60.0
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(post, "ANSWER_SECONDS", 0.3)


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


@pytest.fixture
def head() -> Iterator[NodeCluster]:
    """A cluster of one node."""
    with node_cluster(nodes=1) as cluster:
        yield cluster


def wanted(hook: Webhook, **settings: Any) -> Settings:
    return Settings(**{"addresses": {"webhook": hook.url}, "on": EVENTS, "bucket": "gs://b", **settings})


# --- one message ------------------------------------------------------------------------------------------------------


def test_a_message_that_is_not_taken_is_sent_again_and_taken_once() -> None:
    with webhook([500, "cut", 429]) as hook:
        assert send(NOTICE, {"webhook": hook.url}, within=SECONDS) == {"webhook": ""}
    assert len(hook.got) == 4
    assert {headers["idempotency-key"] for _, headers, _ in hook.got} == {NOTICE.id}
    path, headers, body = hook.got[-1]
    assert path == f"/services/{TOKEN}"
    assert headers["content-type"] == "application/json"
    assert body == NOTICE.body("webhook")


@pytest.mark.parametrize(
    ("answer", "problem", "requests"),
    [
        (404, "it answers HTTP 404", 1),
        ("redirect", "it answers HTTP 302, and no redirect is followed", 1),
        ("noise", "it answers something that is not HTTP", 1),
        # It has the message, and would get it twice.
        ("hang", "it does not answer in time", 1),
    ],
)
def test_what_will_not_pass_is_not_tried_again(answer: int | str, problem: str, requests: int) -> None:
    with webhook([answer]) as hook:
        assert send(NOTICE, {"webhook": hook.url}, within=SECONDS) == {"webhook": problem}
    assert [path for path, _, _ in hook.got] == [f"/services/{TOKEN}"] * requests


@pytest.mark.parametrize("answers", [["drip"], [500] * 1000])
def test_a_server_that_never_takes_it_is_given_up_in_time(answers: list[int | str]) -> None:
    with webhook(answers) as hook:
        problem = send(NOTICE, {"webhook": hook.url}, within=1.0)["webhook"]
    assert problem in ("no answer in 1 s", "it answers HTTP 500")


def test_a_server_that_is_gone_and_a_name_that_is_none_are_named_without_the_address() -> None:
    addresses = {"webhook": f"http://127.0.0.1:{free_port()}/{TOKEN}", "slack": f"https://no..where/{TOKEN}"}
    found = send(NOTICE, addresses, within=2.0)
    assert found == {"webhook": "Connection refused", "slack": "its name cannot be resolved"}
    assert TOKEN not in repr(Settings(addresses=addresses, on=EVENTS))


def test_each_address_gets_its_own_form_although_the_other_hangs() -> None:
    with webhook(["drip"]) as slow, webhook() as slack:
        found = send(NOTICE, {"webhook": slow.url, "slack": slack.url}, within=1.0)
    assert found == {"webhook": "no answer in 1 s", "slack": ""}
    assert slack.messages == [NOTICE.body("slack")]


def test_a_certificate_that_cannot_be_verified_gets_nothing(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *names]
    subprocess.run(made, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with webhook(tls=tls) as hook:
        assert send(NOTICE, {"webhook": hook.url}, within=SECONDS) == {"webhook": "its certificate cannot be verified"}
    assert hook.got == []


# --- from a run -------------------------------------------------------------------------------------------------------


def told(hook: Webhook, *, times: int = 1) -> list[dict[str, Any]]:
    """The messages, once this many have come."""
    return until(lambda: hook.messages if len(hook.got) >= times else None, seconds=SECONDS, what="a message")


def notify_files(cluster: NodeCluster) -> list[Path]:
    return list(cluster.base.glob("*/run/hvdcloud/*/notify.json"))


def forgotten(cluster: NodeCluster) -> None:
    until(lambda: not notify_files(cluster), seconds=SECONDS, what="the end of the addresses on the nodes")


def event_details(cluster: NodeCluster, name: str) -> list[str]:
    lines = (cluster.run_dir() / "events.jsonl").read_text().splitlines()
    return [event["detail"] for event in map(json.loads, lines) if event["event"] == name]


def test_the_head_tells_how_a_run_ended_and_forgets_where(cluster: NodeCluster) -> None:
    with webhook([500]) as hook, webhook() as slack:
        addresses = {"webhook": hook.url, "slack": slack.url}
        script = (
            "import os, pathlib; pathlib.Path(os.environ['HVDCLOUD_CHECKPOINT_DIR'], 'x.pt').touch(); print('trains')"
        )
        about = {"dollars_per_hour": 2.0, "dollars_before": 0.5, "seen": time.time()}
        cluster.start_run(script, notify=wanted(hook, addresses=addresses), about=about)
        cluster.wait_done()
        # The laptop asks for this before it deletes the nodes.
        assert cluster.verb("n0", "flush") == {"runs": {}}
        assert (len(hook.got), len(slack.got), notify_files(cluster)) == (2, 1, [])
    message = hook.messages[1]
    assert (message["event"], message["result"], message["exit_code"]) == ("end", "succeeded", 0)
    assert (message["cluster"], message["run"]) == ("digits", RUN)
    assert (message["checkpoint_files"], message["checkpoints_complete"]) == (2, True)
    assert 0.5 < message["dollars"] < 0.6
    assert "[0] trains" in message["last_lines"]
    assert message["objects"]["log"] == f"gs://b/digits/{RUN}/.hvdcloud/log"
    assert slack.messages[0]["text"].startswith(f"*digits: run {RUN} succeeded after ")
    bucket = FolderBucket(cluster.bucket)
    assert json.loads(bucket.read(f"digits/{RUN}/.hvdcloud/told"))["by"] == "n0"
    assert event_details(cluster, "told") == ["end, webhook", "end, slack"]
    wait_gone([cluster.supervisor(), cluster.agent("n0"), cluster.agent("n1")])
    assert {
        path.name for name in cluster.names for path in (cluster.root(name) / "run/hvdcloud").glob("2*-??????")
    } == set()


def test_the_address_is_nowhere_but_in_roots_file_in_memory(cluster: NodeCluster) -> None:
    with webhook() as hook:
        cluster.start_run(AT_WORK, notify=wanted(hook))
        cluster.wait_for_log("at work", times=2)
        assert {path.stat().st_mode & 0o777 for path in notify_files(cluster)} == {0o600}
        assert len(notify_files(cluster)) == 2
        assert {path.parent.stat().st_mode & 0o777 for path in notify_files(cluster)} == {0o700}

        def holding() -> set[str]:
            files = (path for path in cluster.base.rglob("*") if path.is_file() and not path.is_symlink())
            return {path.name for path in files if TOKEN.encode() in path.read_bytes()}

        assert holding() == {"notify.json"}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            assert TOKEN.encode() not in seen, process
        assert TOKEN not in str(cluster.verb("n0", "stop", RUN))
        assert told(hook)[0]["result"] == "stopped"
        forgotten(cluster)
        assert holding() == set()


def test_a_failure_is_told_with_what_was_printed_last(head: NodeCluster) -> None:
    with webhook() as hook:
        script = "import os, sys, time; time.sleep(0.1); print('<!channel> \\x1b[2J\\u202e'); sys.exit(3)"
        head.start_run(script, notify=wanted(hook, on=["failed"]))
        message = told(hook)[0]
    assert (message["event"], message["exit_code"]) == ("failed", 3)
    assert any(line.endswith("<!channel> \\x1b[2J\\u202e") for line in message["last_lines"])
    assert all(line.isprintable() for line in message["last_lines"])


def test_what_is_not_asked_for_is_not_told(head: NodeCluster) -> None:
    with webhook() as hook:
        head.start_run("print('trains')", notify=wanted(hook, on=["failed", "lost"]))
        assert head.wait_done()["result"] == "succeeded"
        forgotten(head)
    assert hook.got == []


def test_a_server_that_hangs_delays_neither_the_end_nor_the_next_run(head: NodeCluster) -> None:
    with webhook(["drip"]) as hook:
        head.start_run("print('trains')", notify=wanted(hook))
        state = head.wait_done()
        assert (state["result"], state["checkpoints"]["complete"]) == ("succeeded", True)
        until((head.run_dir() / "log-kept").exists, seconds=SECONDS, what="the log in the bucket")
        # The next run does not wait either.
        head.prepare([sys.executable, "-c", "pass"], run="20261121-101113-abcdef")
        assert head.launch(run="20261121-101113-abcdef") == {"ok": True}


def test_the_deletion_of_nodes_waits_for_the_message_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.ROOT_VARIABLE, str(tmp_path))
    file = paths.notify_file(RUN)
    file.parent.mkdir(parents=True)
    file.touch()
    tell.wait_told(RUN, seconds=0.2)
    assert file.exists()
    threading.Timer(0.2, file.unlink).start()
    tell.wait_told(RUN, seconds=10 * SECONDS)
    assert not file.exists()


def test_a_run_whose_supervisor_was_killed_is_told_by_the_head_all_the_same(head: NodeCluster) -> None:
    with webhook() as hook:
        head.start_run(AT_WORK, notify=wanted(hook))
        head.wait_for_log("at work")
        os.kill(head.supervisor(), signal.SIGKILL)
        message = told(hook)[0]
    assert (message["event"], message["result"]) == ("lost", "lost")
    assert "supervisor" in message["reason"]


def test_a_lost_run_that_a_client_may_try_again_is_left_to_that_client(cluster: NodeCluster) -> None:
    bucket, name = FolderBucket(cluster.bucket), f"digits/{RUN}/.hvdcloud/told"
    with webhook() as hook:
        cluster.start_run(AT_WORK, notify=wanted(hook, retries=True))
        cluster.wait_for_log("at work", times=2)
        os.kill(cluster.agent("n1"), signal.SIGKILL)
        assert cluster.wait_done(seconds=SECONDS)["result"] == "lost"
        # It waits for the client now.
        assert bucket.stat(name) is None
        assert notify_files(cluster)
        bucket.write(name, b"{}", if_generation=0)
        forgotten(cluster)
    assert hook.got == []


def test_the_head_tells_that_a_run_is_lost_whose_client_says_nothing(cluster: NodeCluster) -> None:
    with webhook() as hook:
        cluster.start_run(AT_WORK, notify=wanted(hook, retries=True))
        cluster.wait_for_log("at work", times=2)
        os.kill(cluster.agent("n1"), signal.SIGKILL)
        cluster.wait_done(seconds=SECONDS)
        assert at_once(cluster, "n0", "end").wait(timeout=SECONDS) == 0
    assert [message["event"] for message in hook.messages] == ["lost"]


@pytest.mark.parametrize("retries", [False, True])
def test_a_head_that_is_preempted_tells_before_it_goes(head: NodeCluster, retries: bool) -> None:
    with webhook() as hook:
        head.start_run(AT_WORK, notify=wanted(hook, retries=retries))
        head.wait_for_log("at work")
        # What its container does before it ends; a client that would try the run again says nothing.
        with notices() as server:
            server.preempt()
            head.has_metadata_server("n0", server.url)
            began = time.monotonic()
            ending = head.call("n0", "hvdcloud.node.boot.entrypoint:save_all")
            ending.communicate(timeout=60)
            assert ending.returncode == 0
            took = time.monotonic() - began
        assert [(message["event"], message["run"]) for message in hook.messages] == [("lost", RUN)]
    assert took < drain.LEAVE_SECONDS


def head_lost(cluster: NodeCluster, name: str) -> subprocess.Popen[bytes]:
    """What a node's agent starts when it has lost the head, without its patience."""
    return at_once(cluster, name, "head-lost")


def at_once(cluster: NodeCluster, name: str, why: str) -> subprocess.Popen[bytes]:
    """What tells on a node, without its patience."""
    patience = "tell.HEAD_SECONDS = tell.RETRY_SECONDS = 0"
    program = f"from hvdcloud.node.notify import tell; {patience}; tell.main({RUN!r}, {why!r})"
    return subprocess.Popen([sys.executable, "-c", program], env=cluster.environment(name))


def test_a_lost_head_is_told_by_the_first_of_the_other_nodes_and_once() -> None:
    with node_cluster(nodes=3) as cluster, webhook() as hook:
        cluster.start_run(AT_WORK, notify=wanted(hook))
        cluster.wait_for_log("at work", times=3)
        agents = [cluster.agent(name) for name in ("n1", "n2")]
        head = (cluster.agent("n0"), cluster.supervisor())
        # As at once: one of them that is left alone for a moment would begin another agent, or end the run.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in head:
                os.kill(process, number)
        wait_gone(agents)
        # They have started what tells it, which leaves the head half a minute to do so itself.
        line = f"notify\0{RUN}\0head-lost".encode()
        seen: set[Path] = set()

        def started() -> bool:
            # On a busy machine one may have ended before the other starts.
            seen.update(path for path in Path("/proc").glob("[0-9]*/cmdline") if line in read(path))
            return len(seen) == 2

        until(started, seconds=SECONDS, what="the processes of n1 and n2 that tell")
        tellers = [head_lost(cluster, name) for name in ("n1", "n2")]
        for teller in tellers:
            assert teller.wait(timeout=SECONDS) == 0
        assert len(notify_files(cluster)) == 1
    (message,) = hook.messages
    assert (message["event"], message["checkpoint_files"]) == ("lost", None)
    assert message["reason"].endswith("has lost the connection to the head, and was not told that the run has ended")


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_what_another_has_told_is_not_told_again(head: NodeCluster) -> None:
    with webhook() as hook:
        FolderBucket(head.bucket).write(f"digits/{RUN}/.hvdcloud/told", b"{}")
        head.start_run("print('trains')", notify=wanted(hook))
        assert head.wait_done()["result"] == "succeeded"
        forgotten(head)
    assert hook.got == []


def test_the_head_tells_without_its_bucket(head: NodeCluster) -> None:
    with webhook() as hook:
        head.start_run(
            f"import shutil; shutil.rmtree({str(head.bucket)!r}, ignore_errors=True); "
            f"open({str(head.bucket)!r}, 'w').close()",
            notify=wanted(hook),
        )
        assert told(hook)[0]["checkpoints_complete"] is False


def test_the_cost_is_told_once_while_the_run_continues(head: NodeCluster) -> None:
    with webhook() as hook:
        about = {"dollars_per_hour": 3600.0, "dollars_before": 7.0, "seen": time.time()}
        head.start_run(AT_WORK, notify=wanted(hook, max_cost=10.0), about=about)
        message = told(hook)[0]
        assert (message["event"], message["result"], message["max_cost"]) == ("cost", "", 10.0)
        assert message["dollars"] >= 8.0
        assert len(notify_files(head)) == 1
        head.verb("n0", "stop", RUN)
        assert [each["event"] for each in told(hook, times=2)] == ["cost", "end"]


# --- from this machine ------------------------------------------------------------------------------------------------


def test_who_follows_a_run_tells_that_its_head_is_gone_unless_that_was_told(
    laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        for _ in range(2):
            vm = new_vm({"hvdcloud-node logs": lambda channel: channel.sendall(b"[0] epoch 1\n")})
            context, cluster, machines = laptop.context([vm])
            context.config = context.config.model_copy(update={"notify": NotifyConfig(webhook="HOOK")})

            def delete(machines: Machines = machines, vm: Vm = vm) -> None:
                assert vm.asked.wait(SECONDS)
                machines.cluster_now = None
                vm.vanish()

            threading.Thread(target=delete, daemon=True).start()
            with context, pytest.raises(NodeError, match="the head, is gone"):
                logs.follow(context, cluster, VANISHED)
    (message,) = hook.messages
    assert (message["event"], message["run"], message["last_lines"]) == ("lost", VANISHED, ["epoch 1"])
    assert laptop.err.getvalue() == ""


@pytest.mark.parametrize("tried_again", [True, False])
def test_who_only_looks_at_a_run_leaves_it_to_the_client_that_may_try_it_again(
    tried_again: bool, laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tell, "RETRY_SECONDS", SECONDS if tried_again else 0.1)
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        vm = new_vm({"hvdcloud-node logs": lambda channel: channel.sendall(b"[0] epoch 1\n")})
        context, cluster, machines = laptop.context([vm])
        run = context.config.run.model_copy(update={"retry": RetryConfig()})
        update = {"notify": NotifyConfig(webhook="HOOK"), "run": run}
        context.config = context.config.model_copy(update=update)
        waits = threading.Event()

        def is_tried_again(*asked: Any) -> bool:
            waits.set()
            return notify.is_tried_again(*asked)

        monkeypatch.setattr(logs, "is_tried_again", is_tried_again)

        def delete() -> None:
            assert vm.asked.wait(SECONDS)
            machines.cluster_now = None
            vm.vanish()
            if tried_again:
                # The one that follows the run needs longer to find that out.
                assert waits.wait(SECONDS)
                notify.keep_quiet(context, cluster, VANISHED)

        threading.Thread(target=delete, daemon=True).start()
        with context, pytest.raises(NodeError, match="the head, is gone") as raised:
            logs.follow(context, cluster, VANISHED)
    assert ("another command tries it again" in raised.value.message) is tried_again
    assert [message["event"] for message in hook.messages] == ([] if tried_again else ["lost"])


def test_a_run_that_is_tried_again_is_not_told_to_be_lost(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.url)
        context, cluster, _ = laptop.context([])
        context.config = context.config.model_copy(update={"notify": NotifyConfig(webhook="HOOK")})
        with context:
            notify.keep_quiet(context, cluster, VANISHED)
            # As a node would that has lost the head of an elastic run, or a second client.
            notify.tell_lost(context, cluster, VANISHED, "gone", last_lines=[])
            told = [each.name for each in context.bucket(cluster).list("") if ".hvdcloud/told" in each.name]
    assert hook.got == []
    assert [name.rpartition("/")[2] for name in sorted(told)] == ["told", "told-head-lost"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "notify.webhook names HOOK, which is not set here"),
        (SECRET, "notify.webhook: the value of HOOK is not an https:// address"),
        (
            f"https://me:{SECRET.replace('/', '')}@example.com/",
            "notify.webhook: the value of HOOK has a user name or a password in it",
        ),
    ],
)
def test_a_variable_that_a_strangers_file_names_is_neither_contacted_nor_shown(
    value: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"name": "digits", "notify": {"webhook": "HOOK"}})
    monkeypatch.delenv("HOOK", raising=False)
    if value is not None:
        monkeypatch.setenv("HOOK", value)
    with pytest.raises(UsageError) as raised:
        notify.header(config, bucket="gs://b")
    assert (raised.value.message, raised.value.hint) == (problem, "export HOOK=https://…")
    (check,) = (each for each in project_checks(config) if each.name == "notify")
    finding = check.run()
    assert finding.status is Status.FAILED
    assert SECRET[:10] not in f"{finding}{raised.value}"


def test_doctor_sends_a_test_if_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.model_validate({"name": "digits", "notify": {"webhook": "HOOK", "slack": "SLACK"}})
    with webhook() as hook, webhook([403]) as slack:
        monkeypatch.setenv("HOOK", hook.url)
        monkeypatch.setenv("SLACK", slack.url)
        refused = notify.test(config)
        taken = notify.test(config)
    assert refused.message == "notify.slack: no message was taken: it answers HTTP 403"
    assert (taken.status, taken.message) == (Status.OK, "webhook and slack took a message")
    assert hook.messages[0]["event"] == "test"
    assert notify.test(Config.model_validate({"name": "digits"})).message == "notify names no address"
