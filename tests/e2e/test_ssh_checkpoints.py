"""Checkpoints of nodes on machines that are reached by SSH, without a bucket: they come home, whatever ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.remote.keys import new_key_pair
from tests.support.harness import TEST_LABEL, Project, project_in, until
from tests.support.ssh_hosts import SshHosts, ssh_hosts

pytestmark = pytest.mark.engine

HOSTS = ("gpu0", "gpu1")
LIMIT = 7200
"""Seconds; the entrypoint, which counts them, is another test's subject."""
# A file every half second, and none is written twice.
SAVES = 'i=0; while :; do i=$((i+1)); echo "$i" > "$HVDCLOUD_CHECKPOINT_DIR/step-$i.pt"; sleep 0.5; done'
# What restored files a rank finds, then one that leaves no earlier than in ten minutes.
FINDS = (
    'cd "$HVDCLOUD_CHECKPOINT_DIR"; test -e early.pt || { ls | wc -l > early.pt; }; sleep 3; echo late > late.pt; '
    "echo written; sleep 600"
)


@pytest.fixture(scope="module")
def hosts(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Two machines that have the image."""
    with ssh_hosts(tmp_path_factory.mktemp("user"), *HOSTS, images=[image]) as hosts:
        yield hosts


@pytest.fixture
def project(tmp_path: Path, hosts: SshHosts) -> Iterator[Project]:
    """Nothing of it is left on the machines after the test."""
    project = new_project(tmp_path, hosts, keep_every=0.5)
    yield project
    project.hvdcloud("down", "--force")
    assert left(hosts, project) == []


def new_project(root: Path, hosts: SshHosts, *, keep_every: float) -> Project:
    project = project_in(
        root,
        "t-home",
        provider="ssh",
        ssh={"hosts": list(HOSTS)},
        nodes=2,
        checkpoints={"keep_every": keep_every},
        limits={"max_run_duration": LIMIT, "idle": None},
    )
    project.environ["PATH"] = hosts.path
    return project


def left(hosts: SshHosts, project: Project) -> list[str]:
    """Containers and volumes on the machines."""
    label = f"label=hvdcloud-cluster={project.name}"
    volumes = [name for host in hosts.hosts for name in host.docker("volume", "ls", "-q", "--filter", label).split()]
    return [*hosts.left(project.name), *volumes]


def states(hosts: SshHosts) -> set[str]:
    """Of the nodes' containers."""
    found = "".join(
        host.docker("ps", "-a", "--filter", "name=t-home", "--format", "{{.State}}\n") for host in hosts.hosts
    )
    return set(found.split())


def written(hosts: SshHosts) -> int:
    """How many checkpoints the first node has."""
    find = ["find", "/var/lib/hvdcloud/checkpoints", "-name", "step-*.pt"]
    return len(hosts["gpu0"].docker("exec", "t-home-0", *find).splitlines())


def pulled(project: Project) -> dict[str, Any]:
    """The only run, once it has been pulled."""
    (run,) = project.hvdcloud("pull", "--json").json["result"]["runs"]
    found: dict[str, Any] = run
    return found


def test_a_container_ends_once_its_limit_is_over(engine: Any, image: str) -> None:
    environment = {"HVDCLOUD_TIME_LIMIT": "1", "HVDCLOUD_AUTHORIZED_KEY": new_key_pair("laptop").public}
    container = engine.containers.run(image, environment=environment, labels={TEST_LABEL: "limit"}, detach=True)
    try:
        container.wait(timeout=300)
        said = container.logs().decode()
        assert "hvdcloud: limits.max_run_duration of 1 s is over; switching off\n" in said
    finally:
        container.remove(force=True)


@pytest.mark.nightly
def test_nodes_that_end_at_their_limit_with_the_laptop_off_lose_nothing_and_leave_nothing(
    project: Project, hosts: SshHosts, tmp_path: Path
) -> None:
    project.hvdcloud("up", "--yes")
    home = project.state / project.name / "bucket" / project.name
    with project.started("run", "--", "sh", "-c", SAVES) as process:
        until(lambda: len(list(home.glob("*/@node-1/step-*.pt"))) > 2, what="checkpoints at home")
        assert process.poll() is None
        process.kill()
    here = len(list(home.glob("*/step-*.pt")))
    assert hosts["gpu0"].docker("exec", "t-home-0", "printenv", "HVDCLOUD_TIME_LIMIT") == f"{LIMIT}\n"
    until(lambda: written(hosts) > here + 1, what="checkpoints that the laptop never saw")
    # As the head's entrypoint does when that is over.
    hosts["gpu0"].docker("exec", "--detach", "t-home-0", "hvdcloud-node", "end-at-limit")
    until(lambda: states(hosts) == {"exited"}, what="the nodes to end by themselves")
    said = project.hvdcloud("run", "--", "true", expect=5).err
    assert "have stopped: nodes end themselves " in said
    # What is only there keeps them; they are started for it, and end again.
    assert "not pulled" in project.hvdcloud("down", expect=9).err
    run = pulled(project)
    assert run["complete"]
    assert states(hosts) == {"exited"}
    folder = Path(run["folder"])
    for part in (folder, folder / "@node-1"):
        steps = sorted(int(re.sub(r"\D", "", path.stem)) for path in part.glob("step-*.pt"))
        assert steps == list(range(1, len(steps) + 1))
    assert len(list(folder.glob("step-*.pt"))) > here
    project.hvdcloud("down")
    assert left(hosts, project) == []

    # Another cluster continues from what is at home: node 0 gets what node 1 wrote, too.
    again = new_project(tmp_path / "again", hosts, keep_every=600.0)
    again.state = project.state
    again.hvdcloud("up", "--yes")
    with again.started("run", "--resume", run["run"], "--", "sh", "-c", FINDS) as process:
        until(
            lambda: again.hvdcloud("logs", expect=None).out.count("written") == 2,
            what="both checkpoints on the nodes",
        )
        process.kill()
    # As after a reboot: nothing had time to leave the container.
    for host in hosts.hosts:
        host.docker("kill", *host.containers("name=t-home"))
    until(lambda: states(hosts) == {"exited"}, what="the containers to be dead")
    found = again.hvdcloud("pull", "--json").json["result"]["runs"]
    folder = Path(found[-1]["folder"])
    assert (folder / "late.pt").read_text() == (folder / "@node-1" / "late.pt").read_text() == "late\n"
    assert int((folder / "early.pt").read_text()) >= len(steps)
    again.hvdcloud("down")
    assert left(hosts, again) == []
