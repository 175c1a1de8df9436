"""Ranks have what they need and no more: the container's privileges; secrets are in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.providers.engine.requests import CAPABILITIES
from tests.support.harness import Project, brought_up, project_in, until

pytestmark = pytest.mark.engine

TOKEN = "hunter2-ranks"
# include/uapi/linux/capability.h
NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18,
           "SYS_PTRACE": 19, "AUDIT_WRITE": 29}  # fmt: skip

# /tmp/as-root is a copy of `id` that is setuid.
JOB = r"""
import json, os, subprocess
from pathlib import Path

status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "rank": os.environ["HOROVOD_RANK"], "uid": os.getuid(), "token": os.environ["TOKEN"] == "hunter2-ranks",
    "effective": int(status["CapEff"], 16), "bounding": int(status["CapBnd"], 16),
    "no_new": status["NoNewPrivs"].strip(),
    "setuid": subprocess.run(
        ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "/tmp/as-root", "-u"],
        capture_output=True, text=True,
    ).stdout.strip(),
}), flush=True)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(tmp_path_factory.mktemp("ranks"), "t-privileges")
    project.environ["TOKEN"] = TOKEN
    project.write("train.py", JOB)
    configure(project)
    with brought_up(project, engine):
        for index in range(2):
            make = "cp /usr/bin/id /tmp/as-root && chmod 4755 /tmp/as-root"
            code, said = engine.containers.get(f"{project.name}-{index}").exec_run(["sh", "-c", make])
            assert code == 0, said
        yield project


def configure(project: Project, **run: Any) -> None:
    project.configure(run={"secrets": ["TOKEN"], **run}, checkpoints={"keep_every": 0.2})


def facts(project: Project, *options: str) -> list[dict[str, Any]]:
    """What the ranks of a run found."""
    out = project.hvdcloud("run", *options).out
    found = [json.loads(line.partition("] ")[2]) for line in out.splitlines() if '{"rank"' in line]
    assert len(found) == 2, out
    return found


def test_ranks_have_the_few_privileges_of_the_container_and_gain_none(project: Project) -> None:
    configure(project)
    allowed = sum(1 << NUMBERS[each] for each in CAPABILITIES)
    for found in facts(project, "--fresh"):
        assert found["uid"] == 0
        assert found["effective"] == found["bounding"] == allowed
        assert (found["no_new"], found["setuid"], found["token"]) == ("1", "1000", True)


def test_secrets_are_in_memory_and_roots_alone(project: Project, engine: Any) -> None:
    for index in range(2):
        container = engine.containers.get(f"{project.name}-{index}")
        mounts = [line.split() for line in container.exec_run(["cat", "/proc/mounts"]).output.decode().splitlines()]
        [(kind, options)] = [(words[2], words[3].split(",")) for words in mounts if words[1] == "/run/hvdcloud"]
        assert kind == "tmpfs"
        assert {"nosuid", "nodev", "noexec", "size=16384k"} <= set(options)
        assert container.exec_run(["stat", "-c", "%a %u", "/run/hvdcloud"]).output.split() == [b"700", b"0"]


def test_a_node_that_was_restarted_has_no_secret_and_keeps_what_comes_to_itself(project: Project, engine: Any) -> None:
    container = engine.containers.get(f"{project.name}-1")
    assert container.exec_run(["touch", "/run/hvdcloud/secret"]).exit_code == 0
    container.restart(timeout=300)

    def found() -> list[bytes] | None:
        look = "pgrep sshd >/dev/null && ls /run/hvdcloud && stat -c %a /run/hvdcloud"
        listed = container.exec_run(["sh", "-c", look])
        return listed.output.split() if listed.exit_code == 0 else None

    *files, mode = until(found, what="the restarted node")
    assert b"secret" not in files
    assert mode == b"700"
