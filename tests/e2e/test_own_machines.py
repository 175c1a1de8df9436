"""Provider ssh: machines of a user's, each with an sshd and an engine of its own, one behind another."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.storage import StorageServer, running_server
from tests.support.harness import Project, Screen, until
from tests.support.jobs import ALLREDUCE
from tests.support.ssh_hosts import SshHosts, hosts_with_image

pytestmark = pytest.mark.engine

NAMES = ("gpu1", "gpu2", "gpu3")
TWO = {"hosts": ["gpu1", {"host": "gpu2", "jump": "gpu1"}]}
WRITES = 'open(os.environ["HVDCLOUD_CHECKPOINT_DIR"] + f"/{hvd.rank()}.pt", "w").write("weights")\n'


@pytest.fixture(scope="module")
def hosts(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Three machines; gpu2 lets in nobody but gpu1."""
    with hosts_with_image(tmp_path_factory.mktemp("user"), image, *NAMES) as hosts:
        behind = hosts["gpu2"]
        rule = ["-p", "tcp", "--dport", "22", "!", "-s", hosts["gpu1"].address, "-j", "DROP"]
        behind.run("iptables", "-A", "INPUT", *rule)
        yield hosts


@pytest.fixture(scope="module")
def storage(hosts: SshHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageServer]:
    """Where this machine and the hosts reach it."""
    with running_server(tmp_path_factory.mktemp("storage"), host=hosts.gateway) as server:
        yield server


def environment(hosts: SshHosts, storage: StorageServer) -> dict[str, str]:
    return {"PATH": hosts.path, "STORAGE_EMULATOR_HOST": storage.url}


def settings(**more: object) -> dict[str, object]:
    checkpoints = {"bucket": "gs://bucket/own", "keep_every": 0.2}
    return {"provider": "ssh", "ssh": TWO, "checkpoints": checkpoints, **more}


@pytest.fixture
def project(tmp_path: Path, hosts: SshHosts, storage: StorageServer) -> Iterator[Project]:
    project = Project(folder=tmp_path / "project", state=tmp_path / "state", name=f"own-{secrets.token_hex(2)}")
    project.folder.mkdir()
    project.environ = environment(hosts, storage)
    project.write("requirements.txt", "scikit-learn\n")
    project.write("train.py", f"import os\n{ALLREDUCE}\n{WRITES}")
    project.configure(**settings())
    yield project
    if left := hosts.left(project.name):
        project.hvdcloud("down", "--force", expect=None)
    assert left == []


def test_the_whole_life_on_two_hosts(project: Project, hosts: SshHosts, tmp_path: Path) -> None:
    refused = project.hvdcloud("up", expect=2)
    assert "would run on gpu1, gpu2" in refused.err
    assert hosts.left() == []
    up = project.hvdcloud("up", "--yes", "--json").json["result"]
    assert [node["host"] for node in up["nodes"]] == ["gpu1", "gpu2"]
    assert hosts["gpu1"].containers("label=managed-by=hvdcloud") == [f"{project.name}-0"]
    assert hosts["gpu2"].containers("label=managed-by=hvdcloud") == [f"{project.name}-1"]
    # Where its sshd listens: for the other nodes and for this machine, through the host's own sshd.
    listening = hosts["gpu2"].run("ss", "-ltnH")
    assert f"{hosts['gpu2'].address}:{up['nodes'][1]['port']}" in listening
    assert f"0.0.0.0:{up['nodes'][1]['port']}" not in listening

    out = project.hvdcloud("run").out
    assert sorted(out.splitlines()) == ["[0] rank 0 of 2 sums 1", "[1] rank 1 of 2 sums 1"]
    project.configure(**settings(run={"controller": "mpi"}))
    assert "rank 1 of 2 sums 1" in project.hvdcloud("run", "--fresh").out
    assert project.hvdcloud("ssh", "1", "--", "hostname").out == f"{project.name}-1\n"
    assert f"{project.name}-1  running  on gpu2" in project.hvdcloud("status").out

    # Another laptop, which knows nothing of it.
    another = Project(folder=project.folder, state=tmp_path / "another", name=project.name, environ=project.environ)
    (listed,) = another.hvdcloud("list", "--json").json["result"]
    assert (listed["name"], listed["expected_nodes"], len(listed["nodes"])) == (project.name, 2, 2)

    assert project.hvdcloud("down", expect=9).err
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [run["files"] for run in pulled] == [2, 2]
    project.hvdcloud("down")
    assert hosts.left() == []
    assert connections_of(hosts) == []
    assert project.hvdcloud("down").exit_code == 0


def connections_of(hosts: SshHosts) -> list[str]:
    """Programs of this test's user that are still connected to a host."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(hosts.config) in words:
            found.append(" ".join(words))
    return found


def test_what_is_wrong_with_each_host_is_said_at_once(project: Project, hosts: SshHosts) -> None:
    hosts["gpu3"].run("sh", "-c", "mv /var/run/docker.sock /var/run/docker.gone")
    known = hosts.known_hosts.read_text()
    hosts.known_hosts.write_text("".join(line for line in known.splitlines(True) if not line.startswith("gpu2")))
    bad = ["bob@gpu1", {"host": "gpu2", "jump": "gpu1"}, "gpu3", "nowhere.invalid"]
    try:
        project.configure(**settings(ssh={"hosts": bad}))
        said = project.hvdcloud("up", "--yes", expect=3).err
        assert "bob may not use the Docker engine of gpu1: permission denied on /var/run/docker.sock" in said
        assert "the host key of gpu2 is not known on this machine" in said
        assert "no Docker engine answers on gpu3" in said
        assert "nowhere.invalid cannot be found" in said
        examined = project.hvdcloud("doctor", "--json", expect=None).json["result"]
        checks = {each["name"]: each for each in examined["checks"]}
        assert [checks[f"host {name}"]["status"] for name in ("gpu1", "gpu2", "gpu3")] == ["failed"] * 3
    finally:
        hosts["gpu3"].run("sh", "-c", "mv /var/run/docker.gone /var/run/docker.sock")
        hosts.known_hosts.write_text(known)
    assert hosts.left() == []


@pytest.mark.parametrize("moment", ["creating", "booting", "ready"])
def test_an_up_that_is_killed_leaves_what_down_deletes(project: Project, hosts: SshHosts, moment: str) -> None:
    with project.started("up", "--yes") as process:
        screen = Screen(process)
        until(lambda: moment in screen.text or screen.exit_code is not None, seconds=60, what=moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    project.hvdcloud("down")
    assert hosts.left() == []
    until(lambda: not connections_of(hosts), seconds=30, what="the connections of a killed process to end")


def test_ctrl_c_during_up_deletes_what_it_made(project: Project, hosts: SshHosts) -> None:
    with project.started("up", "--yes") as process:
        screen = Screen(process)
        screen.wait_for("booting")
        process.send_signal(signal.SIGINT)
        screen.end(within=60)
    assert screen.exit_code == 130
    assert hosts.left() == []
