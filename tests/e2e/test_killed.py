"""A command that dies in the middle: `list` shows what there is, and `down` leaves nothing of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.harness import (
    Project,
    Screen,
    brought_up,
    labelled,
    leaves_nothing,
    processes_in,
    project_in,
    receives_files,
    until,
)

pytestmark = pytest.mark.engine

Moment = Callable[[Project, Any], object]

WORKS = 'echo x > "$HVDCLOUD_CHECKPOINT_DIR/first.pt"; echo works; exec sleep 600'
MANY = 'for n in $(seq 60); do head -c 2000000 /dev/zero > "$HVDCLOUD_CHECKPOINT_DIR/$n.pt"; done'


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project whose cluster is not up, and of which nothing is left after the test."""
    project = project_in(tmp_path, "t-killed")
    with leaves_nothing(project, engine):
        yield project
    assert processes_of(project) == []


def processes_of(project: Project) -> list[str]:
    """Processes of this machine that one of the project's commands started, or that are one."""
    found = []
    for process in psutil.process_iter():
        try:
            # A command itself is forked, and has the environment that the server that forked it was started with.
            if process.cwd() == str(project.folder) or process.environ().get("HVDCLOUD_STATE_DIR") == str(
                project.state
            ):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def interrupt_when(
    project: Project, engine: Any, moment: Moment, *args: str, number: int = signal.SIGKILL
) -> tuple[int, str]:
    """Start a command and send it a signal as soon as something is true.

    Returns:
        Its exit code and what it printed.
    """
    with project.started(*args) as process:
        screen = Screen(process)
        began = looked = time.monotonic()
        while True:
            # Stopped while the test looks: else a busy machine lets a short moment pass before the signal.
            process.send_signal(signal.SIGSTOP)
            try:
                if moment(project, engine):
                    process.send_signal(number)
                    break
            finally:
                process.send_signal(signal.SIGCONT)
            now = time.monotonic()
            assert now - began < 60, f"{moment} did not come\n{screen.text}"
            assert process.poll() is None, f"it ended too early\n{screen.text}"
            time.sleep(min(0.02, max(0.002, now - looked)))
            looked = time.monotonic()
        code = screen.end()
    if number == signal.SIGKILL:
        assert code == -number, f"it had ended before the signal came\n{screen.text}"
    return code, screen.text


def holds_the_lock(project: Project, engine: Any) -> bool:
    """`up` has begun, and has not written anything that it intends yet."""
    return (project.state / project.name / "lock").exists()


def begun(project: Project, engine: Any) -> bool:
    """`up` has written its intention, and has not asked the engine for anything yet."""
    journal = project.state / project.name / "journal.jsonl"
    return journal.exists() and '"up"' in journal.read_text()


def has_keys(project: Project, engine: Any) -> bool:
    """`up` has made its keys, and asks the engine for the network next."""
    return (project.state / project.name / "id_ed25519.pub").exists()


def has_network(project: Project, engine: Any) -> bool:
    return any(found.startswith("network") for found in labelled(engine, project.name))


def has_container(project: Project, engine: Any) -> bool:
    return any(found.startswith("container") for found in labelled(engine, project.name))


def runs(project: Project, engine: Any) -> bool:
    filters = {"label": [f"hvdcloud-cluster={project.name}"], "status": ["running"]}
    return bool(engine.api.containers(filters=filters))


def created(project: Project, engine: Any) -> bool:
    """Everything is asked for, and the nodes are on their way."""
    journal = project.state / project.name / "journal.jsonl"
    return journal.exists() and '"created"' in journal.read_text()


def is_pinned(project: Project, engine: Any) -> bool:
    """The nodes are ready and have not got their mesh key yet."""
    return (project.state / project.name / "known_hosts").exists()


def list_shows_the_truth(project: Project, engine: Any) -> None:
    """What `list` says of the cluster is what is on the engine."""

    def same() -> bool:
        # What the dead command had asked the engine for may still appear.
        before = labelled(engine, project.name)
        clusters = project.hvdcloud("list", "--json").json["result"]
        listed = [found for found in clusters if found["name"] == project.name]
        names = [f"container /{node['name']}" for found in listed for node in found["nodes"]]
        names += [other for found in listed for other in found["other_objects"]]
        return sorted(names) == sorted(before) == sorted(labelled(engine, project.name))

    until(same, what="list to show what is on the engine")


# --- up --------------------------------------------------------------------------------------------------------------

IN_UP = [
    *(pytest.param(moment, marks=pytest.mark.nightly) for moment in (holds_the_lock, begun, has_keys, created)),
    *(has_network, has_container, runs, is_pinned),
]


@pytest.mark.parametrize("moment", IN_UP)
def test_down_leaves_nothing_of_an_up_that_was_killed(project: Project, engine: Any, moment: Moment) -> None:
    interrupt_when(project, engine, moment, "up")
    list_shows_the_truth(project, engine)
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []


@pytest.mark.parametrize("command", ["up", "down"])
def test_what_a_killed_up_had_asked_for_is_deleted_when_it_appears_late(
    project: Project, engine: Any, command: str
) -> None:
    interrupt_when(project, engine, begun, "up")
    journal = (project.state / project.name / "journal.jsonl").read_text().splitlines()
    killed = json.loads(journal[-1])["cluster_id"]
    labels = {"managed-by": "hvdcloud", "hvdcloud-cluster": project.name, "hvdcloud-id": killed}

    def arrive() -> None:
        engine.api.create_network(project.name, driver="bridge", check_duplicate=False, labels=labels)

    late = threading.Timer(0.7, arrive)
    late.start()
    try:
        done = project.hvdcloud(command, "--json")
    finally:
        late.join()
    networks = engine.api.networks(filters={"label": f"hvdcloud-cluster={project.name}"})
    assert killed not in {each["Labels"]["hvdcloud-id"] for each in networks}
    if command == "up":
        assert "an earlier `up` of t-killed was interrupted" in done.err
        assert len(labelled(engine, project.name)) == 3
        project.hvdcloud("down")
    assert labelled(engine, project.name) == []


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, has_network), (signal.SIGTERM, runs), (signal.SIGHUP, is_pinned)]
)
def test_an_interrupted_up_leaves_nothing(project: Project, engine: Any, moment: Moment, number: int) -> None:
    code, printed = interrupt_when(project, engine, moment, "up", number=number)
    assert labelled(engine, project.name) == []
    assert code == 130
    assert "was interrupted; everything that it had made is deleted" in printed
    assert list((project.state / project.name).glob("id_*")) == []


# --- run and pull ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of two nodes that is up."""
    project = project_in(tmp_path_factory.mktemp("killed"), "t-killed-up")
    with brought_up(project, engine):
        yield project
    assert processes_of(project) == []


def receives_code(project: Project, engine: Any) -> bool:
    return receives_files(engine, f"{project.name}-1")


def test_a_run_that_was_killed_while_it_sent_code_is_forgotten_by_the_next_one(cluster: Project, engine: Any) -> None:
    large = cluster.folder / "large.bin"
    large.write_bytes(os.urandom(1 << 20) * 60)
    interrupt_when(cluster, engine, receives_code, "run", "--", "true")
    list_shows_the_truth(cluster, engine)
    assert cluster.hvdcloud("status", "--json").json["result"]["runs"] == []
    large.write_bytes(b"small now\n")
    out = cluster.hvdcloud("run", "--", "sh", "-c", "cat large.bin; ls -A | wc -l").out
    large.unlink()
    assert out.count("small now") == 2
    assert out.count("] 3\n") == 2, "no half-written file is left in the workspace"


def files_on(project: Project, engine: Any, node: int, pattern: str) -> set[str]:
    """Files of runs on a node, below /var/lib/hvdcloud."""
    found = engine.containers.get(f"{project.name}-{node}").exec_run(["sh", "-c", f"ls /var/lib/hvdcloud/{pattern}"])
    return set(found.output.decode().split()) if found.exit_code == 0 else set()


@pytest.mark.parametrize(
    ("node", "pattern"),
    [pytest.param(0, "runs/*/state.json", marks=pytest.mark.nightly), (1, "checkpoints/*/first.pt")],
    ids=["its supervisor runs", "its ranks work"],
)
def test_a_run_whose_command_was_killed_once_it_was_launched_continues(
    cluster: Project, engine: Any, node: int, pattern: str
) -> None:
    before = len(cluster.hvdcloud("status", "--json").json["result"]["runs"])
    earlier = files_on(cluster, engine, node, pattern)

    def moment(project: Project, engine: Any) -> bool:
        return files_on(project, engine, node, pattern) > earlier

    interrupt_when(cluster, engine, moment, "run", "--fresh", "--", "sh", "-c", WORKS)
    list_shows_the_truth(cluster, engine)
    (run,) = cluster.hvdcloud("status", "--json").json["result"]["runs"][before:]
    assert run["state"] == "running"
    until(lambda: cluster.hvdcloud("logs", run["run"]).out.count("works\n") == 2, what="both ranks at work")
    assert f"run {run['run']} is still going" in cluster.hvdcloud("down", expect=9).err
    assert cluster.hvdcloud("stop", "--json").json["result"]["state"] == "stopped"
    for name in (f"{cluster.name}-0", f"{cluster.name}-1"):
        assert processes_in(engine, name, ["sleep 600"]) == []


def test_a_killed_pull_is_finished_by_the_next_one(cluster: Project, engine: Any, tmp_path: Path) -> None:
    run = cluster.hvdcloud("run", "--fresh", "-np", "1", "--json", "--", "sh", "-c", MANY).json["result"]["run"]
    folder = tmp_path / "pulled" / run

    def half_way(project: Project, engine: Any) -> bool:
        return len(list(folder.glob("*.pt"))) >= 10

    interrupt_when(cluster, engine, half_way, "pull", run, "--to", str(tmp_path / "pulled"))
    assert len(list(folder.glob("*.pt"))) < 60
    assert "not pulled" in cluster.hvdcloud("down", expect=9).err
    again = cluster.hvdcloud("pull", run, "--to", str(tmp_path / "pulled"), "--json").json["result"]["runs"]
    assert again[0]["files"] == 60
    assert again[0]["bytes_fetched"] <= 50 * 2_000_000
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.pt" for n in range(1, 61))
    assert {path.stat().st_size for path in folder.iterdir()} == {2_000_000}


# --- down and launch -----------------------------------------------------------------------------------------------


def one_node_is_gone(project: Project, engine: Any) -> bool:
    return sum(found.startswith("container") for found in labelled(engine, project.name)) < 2


def deletes(project: Project, engine: Any) -> bool:
    """`down` has written its intention, and has not asked the engine for anything yet."""
    return '"down"' in (project.state / project.name / "journal.jsonl").read_text()


@pytest.mark.parametrize("moment", [deletes, one_node_is_gone])
def test_down_finishes_what_a_killed_down_began(project: Project, engine: Any, moment: Moment) -> None:
    project.hvdcloud("up")
    interrupt_when(project, engine, moment, "down")
    list_shows_the_truth(project, engine)
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []


def test_a_launch_that_was_killed_in_its_run_loses_nothing_and_leaves_nothing(project: Project, engine: Any) -> None:
    with project.started("launch", "--", "sh", "-c", WORKS) as process:
        Screen(process).wait_for("works", times=2)
        process.kill()
        process.wait()
    list_shows_the_truth(project, engine)
    assert " is still going" in project.hvdcloud("down", expect=9).err
    assert project.hvdcloud("stop", "--json").json["result"]["checkpoints_complete"]
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [entry["files"] for entry in pulled] == [2]
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []
