"""Local nodes with a bucket of Cloud Storage: a run that outlives its token, on a laptop that sleeps meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.google_account import service_account
from tests.standins.storage import StorageServer, running_server
from tests.standins.token_service import TokenService, token_service
from tests.support.harness import Project, labelled, project_in, until

pytestmark = pytest.mark.engine

LOGIN = "ya29.the-users-own-access-token"
WRITES = (
    "d=$HVDCLOUD_CHECKPOINT_DIR; head -c 300000 /dev/urandom > $d/first.pt; "
    "while [ ! -e /tmp/go-$HVDCLOUD_RUN ]; do sleep 0.1; done; head -c 300000 /dev/urandom > $d/last.pt"
)
LIFETIME = 6.0


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenService]:
    with token_service(subject=LOGIN, lifetime=LIFETIME) as service:
        yield service


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("token")


@pytest.fixture(scope="module")
def storage(folder: Path, tokens: TokenService) -> Iterator[StorageServer]:
    def boundary(token: str, action: str, bucket: str, name: str) -> int:
        # This machine reads without a token here, as with any server in Google's place; nobody writes without one.
        return 200 if not token and action in ("get", "list") else tokens.allows(token, action, bucket, name)

    with running_server(folder / "storage", host="0.0.0.0") as server:
        server.boundary = boundary
        yield server


@pytest.fixture(scope="module")
def made(folder: Path, engine: Any, image: str, tokens: TokenService, storage: StorageServer) -> Iterator[Project]:
    project = project_in(folder, "t-token", checkpoints={"bucket": "gs://bucket/team", "keep_every": 0.2})
    with service_account(LOGIN) as account:
        account.write(folder / "key.json")
        project.environ = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "key.json"),
            "HVDCLOUD_STS_ENDPOINT": tokens.url,
            "STORAGE_EMULATOR_HOST": storage.url,
        }
        yield project
        if labelled(engine, project.name):
            project.hvdcloud("down", "--force")
        assert labelled(engine, project.name) == []


@pytest.fixture
def project(made: Project) -> Project:
    """Its cluster is up."""
    made.hvdcloud("up")
    return made


def on_nodes(engine: Any, command: str) -> list[str]:
    """What a command of the shell says on each node."""
    names = ("t-token-0", "t-token-1")
    return [engine.containers.get(name).exec_run(["sh", "-c", command]).output.decode() for name in names]


def renewing_processes(project: Project) -> list[int]:
    """Those of this project, whatever its state folder says."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if (
            b"hvdcloud.lifecycle.storage_tokens" in words
            and f"HVDCLOUD_STATE_DIR={project.state}".encode() in environment
        ):
            found.append(int(path.name))
    return found


def test_a_detached_run_outlives_its_token_and_a_laptop_that_sleeps(
    project: Project, engine: Any, tokens: TokenService, folder: Path
) -> None:
    began = len(tokens.given)
    run = project.hvdcloud("run", "--fresh", "--detach", "--json", "--", "sh", "-c", WRITES).json["result"]["run"]
    (process,) = until(lambda: renewing_processes(project), seconds=20, what="the process that renews")

    # Nothing but a token reaches the nodes, and no mount.
    key = json.loads((folder / "key.json").read_text())["private_key"].splitlines()[1]
    for said in on_nodes(engine, f"grep -rlF -e {LOGIN} -e '{key}' /run /var /root /home /tmp /etc /workspace; env"):
        assert f"/run/hvdcloud/{run}" not in said
        assert LOGIN not in said
        assert "GOOGLE" not in said
    for name in ("t-token-0", "t-token-1"):
        seen = engine.containers.get(name).attrs
        assert seen["Mounts"] == []
        assert not any(token in json.dumps(seen) for token in (*tokens.given, LOGIN, key))
    file = f"/run/hvdcloud/{run}/credentials.json"
    assert on_nodes(engine, f"stat -c %a:%U {file}") == ["600:root\n"] * 2
    held = json.loads(on_nodes(engine, f"cat {file}")[0])["token"]
    own = f"team/t-token/{run}/"
    assert {rule.prefix for rule in tokens.given[held].rules} == {own, f"{own}.hvdcloud/"}

    # The run is longer than its token.
    status = project.hvdcloud("status")
    assert f"process {process} renews the nodes' storage token" in status.out
    until(lambda: len(tokens.given) >= began + 4, seconds=40, what="renewals")
    assert renewing_processes(project) == [process]

    # The laptop sleeps: its last token ends.
    os.kill(process, signal.SIGSTOP)
    asleep = len(tokens.given)
    until(lambda: max(each.expiry for each in tokens.given.values()) < time.time(), seconds=20, what="the token's end")
    on_nodes(engine, f"touch /tmp/go-{run}")
    log = f"cat /var/lib/hvdcloud/runs/{run}/log"
    until(lambda: "uploads wait for a storage token; hvdcloud status renews it" in on_nodes(engine, log)[0], seconds=30,
          what="the log to say that uploads wait")  # fmt: skip
    assert len(tokens.given) == asleep
    # It wakes up, and nobody types anything.
    os.kill(process, signal.SIGCONT)
    until(lambda: "a storage token has arrived: uploads continue" in on_nodes(engine, log)[0], seconds=30,
          what="the log to say that uploads continue")  # fmt: skip

    project.hvdcloud("logs", "-f")
    project.hvdcloud("pull")
    here = project.folder / "checkpoints" / run
    sums = on_nodes(engine, f"cd /var/lib/hvdcloud/checkpoints/{run}/ && sha256sum first.pt last.pt | cut -d' ' -f1")
    pulled = [[here / place / f"{name}.pt" for name in ("first", "last")] for place in ("", "@node-1")]
    import hashlib

    assert sums == ["".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in paths) for paths in pulled]


def test_down_renews_first_refuses_where_it_cannot_and_ends_the_renewals(
    project: Project, engine: Any, tokens: TokenService
) -> None:
    run = project.hvdcloud("run", "--fresh", "--detach", "--json", "--", "sh", "-c", WRITES).json["result"]["run"]
    (process,) = until(lambda: renewing_processes(project), seconds=20, what="the process that renews")
    os.kill(process, signal.SIGKILL)
    until(lambda: max(each.expiry for each in tokens.given.values()) < time.time(), seconds=20, what="the token's end")
    on_nodes(engine, f"touch /tmp/go-{run}")
    tokens.refuses = True
    refused = project.hvdcloud("down", expect=3)
    assert "the login has been revoked" in refused.err
    shown = project.hvdcloud("status")
    assert "uploads wait for a storage token" in shown.out
    tokens.refuses = False
    # Now they go to the bucket, of which this disk has nothing yet.
    assert "hvdcloud pull" in project.hvdcloud("down", expect=9).err
    project.hvdcloud("pull")
    project.hvdcloud("down")
    assert renewing_processes(project) == []
    assert not (project.state / project.name / "tokens.lock").exists()
    assert labelled(engine, project.name) == []
