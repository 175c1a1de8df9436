"""A run that is watched while it lasts, and read about when everything of it is gone."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.lifecycle.top import SILENT_SECONDS
from hvdcloud.storage.folder import FolderBucket
from tests.standins.registry import free_port
from tests.standins.webhook import webhook
from tests.support.harness import Project, Screen, labelled, project_in, until
from tests.support.terminal import terminal

pytestmark = pytest.mark.engine

TRAINS = """
import os, time
from pathlib import Path

rank = int(os.environ["HOROVOD_RANK"])
folder = Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
for epoch in range(1, 10_000):
    print(f"epoch {epoch:2d}/10000: loss {1 / epoch:.3f}, accuracy 0.9, {4000 + epoch} images/s", flush=True)
    if rank == 0 and epoch == 3:
        (folder / "three.pt").write_text("weights")
    time.sleep(0.2)
    if os.path.exists("/tmp/enough"):
        break
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(tmp_path_factory.mktemp("watching"), "t-watching")
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def silent(text: str) -> list[int]:
    """For how many seconds nodes have not answered, as the screen says."""
    return [int(seconds) for seconds in re.findall(r"no answer for (\d+) s", text)]


def test_a_nodes_port_is_forwarded_and_nothing_else(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    head, port = engine.containers.get("t-watching-0"), free_port()
    serve = (
        f"mkdir /tmp/pages && cd /tmp/pages && hostname > index.html && python -m http.server {port} --bind localhost"
    )
    head.exec_run(["sh", "-c", serve], detach=True)
    with project.started("forward", str(port)) as forwarding:
        forwarded = Screen(forwarding)
        forwarded.wait_for(f"localhost:{port} leads to port {port} of the head")

        def page() -> str:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://localhost:{port}/", timeout=60) as answer,
            ):
                return str(answer.read().decode())
            return ""

        assert until(page, seconds=60, what="the node's page") == "t-watching-0\n"
        taken = project.hvdcloud("forward", str(port), expect=255).err
        assert f"bind [127.0.0.1]:{port}: Address already in use" in taken
        forwarding.send_signal(signal.SIGINT)
        forwarded.end(within=30)
    # The key leads no further than the node itself, and the node not to this machine.
    ssh = ["ssh", "-F", str(project.state / project.name / "ssh_config")]
    for way in (
        ["-W", "t-watching-0:2222", "1"],
        ["-N", "-o", "ExitOnForwardFailure=yes", "-R", "9999:localhost:22", "1"],
    ):
        refused = subprocess.run([*ssh, *way], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert refused.returncode != 0
        assert re.search("administratively prohibited|remote port forwarding failed", refused.stderr), refused.stderr


def test_the_head_tells_of_a_run_that_nobody_watches(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    head = engine.containers.get("t-watching-0")
    # A receiver on the head itself, whose certificate the head trusts.
    receiver = """
import http.server, os, pathlib, ssl, subprocess
key, certificate = pathlib.Path("/tmp/key.pem"), pathlib.Path("/tmp/certificate.pem")
trusted = pathlib.Path(ssl.get_default_verify_paths().openssl_cafile)
trusted.parent.mkdir(parents=True, exist_ok=True)
with trusted.open("a") as file:
    file.write(certificate.read_text())
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        pathlib.Path("/tmp/new").write_bytes(body)
        pathlib.Path("/tmp/new").rename("/tmp/told" + self.path.replace("/", "-"))
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 8099), Receiver)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(certificate, key)
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
    with webhook() as hook:
        for name in ("key.pem", "certificate.pem"):
            head.exec_run(["sh", "-c", f'echo "$1" > /tmp/{name}', "", (hook.certificate.parent / name).read_text()])
    head.exec_run(["/opt/hvdcloud/venv/bin/python", "-c", receiver], detach=True)
    often = {"keep_every": 0.2}
    project.configure(checkpoints=often, notify="RUNS_HOOK")
    assert "RUNS_HOOK is not set" in project.hvdcloud("run", "--", "true", expect=2).err
    token = "t0p-s3cret"
    project.environ = {"RUNS_HOOK": f"https://127.0.0.1:8099/{token}"}
    command = ["sh", "-c", "echo the last words; exit 3"]
    run = project.hvdcloud("run", "--detach", "--json", "--", *command).json["result"]["run"]
    project.environ = {}

    def told() -> dict[str, Any] | None:
        code, output = head.exec_run(["cat", f"/tmp/told-{token}"])
        return json.loads(output) if code == 0 else None

    message = until(told, seconds=90, what="a message to the webhook")
    assert (message["result"], message["run"], message["exit_code"]) == ("failed", run, 3)
    assert message["text"].startswith(f"t-watching: run {run} failed after ")
    for node in ("t-watching-0", "t-watching-1"):
        container = engine.containers.get(node)
        assert token not in str(container.attrs)
        searched = container.exec_run(
            ["grep", "-rlF", token, "/var/lib/hvdcloud", "/run/hvdcloud", "/workspace", "/root"]
        )
        assert searched.output == b""
    kept = [path for path in (project.state / project.name).rglob("*") if path.is_file()]
    assert [path for path in kept if token.encode() in path.read_bytes()] == []
    project.configure(checkpoints=often)


def test_a_run_is_watched_sampled_and_reported(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    project.write("train.py", TRAINS)
    bucket = FolderBucket(project.state / project.name / "bucket")
    with project.started("status", "--watch") as watching:
        watched = Screen(watching)
        run = project.hvdcloud("run", "--detach", "--json", "--", "python", "train.py").json["result"]["run"]
        with terminal(project, "top") as top:
            # All of it in one screen: one that is just drawn again has not every part of it.
            shown = ("t-watching-1", "images/s", run, "costs nothing", "[0] epoch")
            top.wait_for(lambda text: all(each in text for each in shown) and text.count(" GB ") >= 2)
            top.press("l")
            top.wait_for(lambda text: "[0] epoch" not in text)
            # A node that stops answering while its machine runs.
            sshd = "for p in $(pgrep sshd); do kill -{} $p; done"
            container = engine.containers.get("t-watching-1")
            container.exec_run(["sh", "-c", sshd.format("STOP")])
            try:
                # It is one node only, once a busy machine has answered for the other; and the seconds are counted on.
                top.wait_for(lambda text: len(silent(text)) == 1)
                first = silent(top.text)
                assert min(first) > SILENT_SECONDS
                top.wait_for(lambda text: len(silent(text)) == 1 and silent(text) > first)
            finally:
                container.exec_run(["sh", "-c", sshd.format("CONT")])
            top.press("q")
            assert top.process.wait(timeout=40) == 0
        with terminal(project, "status", "--watch") as drawn:
            drawn.wait_for(lambda text: "t-watching-1" in text and run in text and "cost so far" in text)
            drawn.process.send_signal(signal.SIGINT)
            code, printed = drawn.end(within=10)
            assert code == 0, printed
        with project.started("logs", "--follow", "--rank", "1") as following:
            followed = Screen(following)
            followed.wait_for("[1] epoch", times=3)
            for node in ("t-watching-0", "t-watching-1"):
                engine.containers.get(node).exec_run(["touch", "/tmp/enough"])
            followed.end(within=30)
            lines = followed.text.splitlines()
            assert {line[:4] for line in lines if line.startswith("[")} == {"[1] "}
            assert any("succeeded" in line for line in lines)
        watched.wait_for("succeeded")
        watching.send_signal(signal.SIGINT)
        watched.end(within=10)
        assert watching.returncode == 0, watched.text
        assert "running" in watched.text
    assert "has no rank 2\n  → its ranks are 0 to 1" in project.hvdcloud("logs", "--rank", "2", expect=2).err
    for node in (0, 1):
        name = f"{project.name}/{run}/.hvdcloud/samples-{node}.jsonl"
        assert until(lambda name=name: bucket.stat(name), seconds=10, what=name)
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [entry["files"] for entry in pulled if entry["run"] == run] == [1]
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []

    kept = project.hvdcloud("logs", run, "--rank", "0").out
    assert kept
    assert all(line.startswith("[0] ") for line in kept.splitlines())
    assert "top needs a terminal" in project.hvdcloud("top", expect=2).err
    # Without an engine, too: the bucket is all that it needs.
    project.environ = {"DOCKER_HOST": f"unix://{project.folder}/none"}
    try:
        result = project.hvdcloud("report", "--to", "run.html", "--json").json["result"]
    finally:
        project.environ = {}
    assert (result["run"], result["result"], result["nodes_sampled"]) == (run, "succeeded", 2)
    html = (project.folder / "run.html").read_text()
    for said in ("CPU utilisation", "Images/s", "three.pt", "client attached", "every node is ready"):
        assert said in html
    assert Path(result["path"]) == project.folder / "run.html"
