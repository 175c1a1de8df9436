"""Provider ssh: machines of a user's, each with an sshd and an engine of its own, one behind another."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.ssh_hosts import SshMachinesConfig
from hvdcloud.errors import CredentialsError, ImageError
from hvdcloud.image.engine_reports import ignore
from hvdcloud.image.publish.transfer import push
from hvdcloud.providers.ssh import images
from hvdcloud.providers.ssh.hosts import Hosts
from tests.standins.registry import closed_registry, free_port, log_in
from tests.support.gce_records import small_image
from tests.support.harness import Project, Screen, project_in, until
from tests.support.jobs import ALLREDUCE
from tests.support.ssh_hosts import SshHosts, ssh_hosts

pytestmark = pytest.mark.engine

NAMES = ("gpu1", "gpu2", "gpu3")
TWO = {"hosts": ["gpu1", {"host": "gpu2", "jump": "gpu1"}]}
REDUCES = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""
WRITES = 'open(os.environ["HVDCLOUD_CHECKPOINT_DIR"] + f"/{hvd.rank()}.pt", "w").write("weights")\n'


@pytest.fixture(scope="module")
def registry_port() -> int:
    """This machine's 127.0.0.1:PORT is the hosts' too."""
    return free_port()


@pytest.fixture(scope="module")
def hosts(image: str, registry_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Three machines; gpu2 lets in nobody but gpu1."""
    folder = tmp_path_factory.mktemp("user")
    with ssh_hosts(folder, *NAMES, image=image, loopback_ports=[registry_port]) as hosts:
        behind = hosts["gpu2"]
        rule = ["-p", "tcp", "--dport", "22", "!", "-s", hosts["gpu1"].address, "-j", "DROP"]
        behind.run("iptables", "-A", "INPUT", *rule)
        yield hosts


def settings(**more: Any) -> dict[str, Any]:
    return {"provider": "ssh", "ssh": TWO, "checkpoints": {"keep_every": 0.2}, **more}


@pytest.fixture
def project(tmp_path: Path, hosts: SshHosts) -> Iterator[Project]:
    project = project_in(tmp_path, f"own-{secrets.token_hex(2)}", **settings())
    project.environ["PATH"] = hosts.path
    project.write("train.py", f"import os\n{ALLREDUCE}\n{WRITES}")
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
    project.write("ddp.py", REDUCES)
    project.configure(**settings(run={"launcher": "torchrun", "command": "python ddp.py"}))
    assert sorted(project.hvdcloud("run", "--fresh").out.splitlines()) == ["[0] sum 3.0", "[1] sum 3.0"]
    assert project.hvdcloud("ssh", "1", "--", "hostname").out == f"{project.name}-1\n"
    # The image's programs, as in a run, and in a login shell too.
    prints = 'python -c "import horovod; print(1)"'
    for words in ([prints], ["sh", "-lc", prints]):
        assert project.hvdcloud("ssh", "0", "--", *words).out == "1\n"
    assert project.hvdcloud("ssh", "0", "--", "bash", "-ilc", "pwd").out == "/workspace\n"
    assert f"{project.name}-1  running  on gpu2" in project.hvdcloud("status").out

    # Another laptop, which knows nothing of it.
    another = Project(folder=project.folder, state=tmp_path / "another", name=project.name, environ=project.environ)
    (listed,) = another.hvdcloud("list", "--json").json["result"]
    assert (listed["name"], listed["expected_nodes"], len(listed["nodes"])) == (project.name, 2, 2)

    assert project.hvdcloud("down", expect=9).err
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [run["files"] for run in pulled] == [2, 2, 0]
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
        assert "nowhere.invalid: " in said
        examined = project.hvdcloud("doctor", "--json", expect=None).json["result"]
        checks = {each["name"]: each for each in examined["checks"]}
        assert [checks[f"host {name}"]["status"] for name in ("gpu1", "gpu2", "gpu3")] == ["failed"] * 3
    finally:
        hosts["gpu3"].run("sh", "-c", "mv /var/run/docker.gone /var/run/docker.sock")
        hosts.known_hosts.write_text(known)
    project.configure(**settings(ssh={"hosts": ["gpu1", hosts["gpu1"].address]}))
    said = project.hvdcloud("up", "--yes", expect=2).err
    assert f"gpu1 and {hosts['gpu1'].address} in ssh.hosts are the same machine" in said
    assert hosts.left() == []


@pytest.mark.parametrize("moment", ["creating", pytest.param("booting", marks=pytest.mark.nightly), "ready"])
def test_an_up_that_is_killed_leaves_what_down_deletes(project: Project, hosts: SshHosts, moment: str) -> None:
    with project.started("up", "--yes") as process:
        screen = Screen(process)
        until(lambda: moment in screen.text or screen.exit_code is not None, what=moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    project.hvdcloud("down")
    assert hosts.left() == []
    until(lambda: not connections_of(hosts), what="the connections of a killed process to end")


@pytest.mark.nightly
def test_a_host_that_is_off_is_named_and_runs_nothing_when_it_is_back(project: Project, hosts: SshHosts) -> None:
    project.configure(**settings(ssh={"hosts": ["gpu1", "gpu3"]}))
    project.hvdcloud("up", "--yes")
    hosts.power_off("gpu3")
    try:
        listed = project.hvdcloud("list", "--json", expect=8)
        assert [each["name"] for each in listed.json["result"]] == [project.name]
        assert "host gpu3 did not answer" in listed.err
        # In ssh's words, or in ours where ssh has none in time.
        down = project.hvdcloud("down", expect=None)
        assert down.exit_code in (8, 9), down.err
        assert re.search(r"\bgpu3\b.*(timed out|did not answer)", down.err), down.err
    finally:
        hosts.power_on("gpu3")
    assert hosts["gpu3"].containers("status=running") == []
    project.hvdcloud("down", "--force")


def test_hosts_pull_an_image_by_its_digest_from_a_private_registry(
    hosts: SshHosts, registry_port: int, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", hosts.path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    config = SshMachinesConfig.model_validate(TWO)

    def bring(image: str) -> set[str]:
        steps: set[str] = set()
        with contextlib.closing(Hosts(config.hosts)) as machines:
            images.bring(image, machines, machines.all, on_progress=lambda progress: steps.add(progress.step))
        return steps

    place = {"addresses": ("127.0.0.1", hosts.gateway), "port": registry_port}
    with (
        closed_registry(tmp_path, "ann", "hunter2-pull", **place) as registry,
        small_image(engine) as reference,
    ):
        log_in(registry, tmp_path, user="ann", password="hunter2-pull")
        repository = f"{registry}/own/small"
        digest = push(reference, repository, progress=ignore)
        image, missing = f"{repository}@{digest}", f"{repository}@sha256:{'0' * 64}"
        log_in(registry, tmp_path, user="ann", password="another")
        with pytest.raises(CredentialsError, match=f"gpu1: {image} was not pulled") as refused:
            bring(image)
        assert refused.value.hint == f"docker login {registry}"
        assert "gpu2: " in refused.value.details
        log_in(registry, tmp_path, user="ann", password="hunter2-pull")
        with pytest.raises(ImageError, match=f"gpu1: {missing} was not pulled: .*not found") as absent:
            bring(missing)
        assert f"gpu2: {missing} was not pulled" in absent.value.details
        steps = bring(image)
        assert {"pulling the image", "has the image"} < steps
        assert any(step.endswith(": Pull complete") for step in steps), steps
    # With the registry off: nothing is asked of it any more.
    assert bring(image) == set()
    for name in ("gpu1", "gpu2"):
        assert digest in hosts[name].docker("images", "--digests", "--format", "{{.Digest}}")
        hosts[name].docker("rmi", image)
    with pytest.raises(ImageError, match=f"gpu1: {image} was not pulled: ") as down:
        bring(image)
    assert f"ssh gpu1 docker pull {image}" in down.value.hint
