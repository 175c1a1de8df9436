"""Runs on one cluster of two nodes: code, output, results, secrets, checkpoints."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hvdcloud
from tests.support import jobs
from tests.support.harness import Ended, Project, Screen, brought_up, labelled, processes_in, project_in, until
from tests.support.project_runs import in_bucket

pytestmark = pytest.mark.engine

TOKEN = "hunter2-e2e-7c1f"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(tmp_path_factory.mktemp("runs"), "t-runs")
    project.environ["TOKEN"] = TOKEN
    configure(project)
    project.write("train.py", "")
    with brought_up(project, engine):
        yield project


def configure(project: Project, **run: Any) -> None:
    run = {"env": {"GREETING": "hello"}, "secrets": ["TOKEN"], **run}
    project.configure(run=run, checkpoints={"keep_every": 0.2})


@pytest.fixture(autouse=True)
def no_rank_is_left(project: Project, engine: Any) -> Iterator[None]:
    configure(project)
    yield
    for container in engine.containers.list(ignore_removed=True, filters={"label": f"hvdcloud-cluster={project.name}"}):
        assert processes_in(engine, container.name, ["train.py"]) == []
        assert processes_in(engine, container.name, ["horovodrun"]) == []


def run(project: Project, job: str, *args: str, expect: int = 0, options: tuple[str, ...] = ()) -> Ended:
    project.write("train.py", job)
    return project.hvdcloud("run", *options, "--", "python", "train.py", *args, expect=expect)


def test_ranks_on_both_nodes_reduce_together_and_every_line_names_its_rank(project: Project) -> None:
    out = run(project, jobs.ALLREDUCE).out
    assert "[0] rank 0 of 2 sums 1\n" in out
    assert "[1] rank 1 of 2 sums 1\n" in out
    assert all(re.match(r"\[(\d+|launcher)\] ", line) for line in out.splitlines())


@pytest.mark.nightly
def test_the_bench_template_measures_every_rank_and_message(project: Project, tmp_path: Path) -> None:
    script = Path(hvdcloud.__file__).parent / "templates/bench/train.py"
    out = run(project, script.read_text(), "--largest", "1", "--repeat", "3", "--width", "64", options=("--fresh",)).out
    assert re.search(r"\[0\] +0 +t-runs-0 ", out)
    assert re.search(r"\[0\] +1 +t-runs-1 ", out)
    assert re.search(r"\[0\] +1\.000 MB +[\d.]+ ms +[\d.]+ MB/s", out)
    pulled = project.hvdcloud("pull", "--to", str(tmp_path / "out"), "--json").json["result"]["runs"]
    result = json.loads((Path(pulled[-1]["folder"]) / "bench.json").read_text())
    assert [each["bytes"] for each in result["messages"]] == [4_000, 40_000, 400_000, 1_000_000]
    assert sorted(each["rank"] for each in result["ranks"]) == [0, 1]


def test_open_mpi_does_the_same(project: Project) -> None:
    out = run(project, jobs.ALLREDUCE, options=("--controller", "mpi")).out
    assert "[0] rank 0 of 2 sums 1\n" in out
    assert "[1] rank 1 of 2 sums 1\n" in out


@pytest.mark.nightly
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_a_ranks_bytes_are_what_its_log_has(project: Project, controller: str) -> None:
    run(project, jobs.WRITES_BYTES, options=("--controller", controller))
    (newest,) = sorted((project.state / project.name / "bucket" / project.name).glob("*/.hvdcloud/log"))[-1:]
    log = newest.read_bytes()
    wrote = bytes(range(256)) * 400 + b"\n" * 20000 + b"[1]<stdout>:caf\xe9\r\n no end"
    for rank in (0, 1):
        jobs.assert_wrote(rank, wrote, log)


def test_what_a_rank_finds_around_it(project: Project) -> None:
    file = project.folder / "hvdcloud.yaml"
    file.write_text(re.sub('"?GREETING"?: "?hello"?', "GREETING: 0123", file.read_text()))
    out = run(project, jobs.ENVIRONMENT).out
    facts = [json.loads(line.partition("] ")[2]) for line in out.splitlines() if '{"rank"' in line]
    assert sorted(fact["host"] for fact in facts) == [f"{project.name}-0", f"{project.name}-1"]
    for fact in facts:
        assert fact["cwd"] == "/workspace"
        assert fact["GREETING"] == "0123"
        assert fact["token"] == hashlib.sha256(TOKEN.encode()).hexdigest()
        assert fact["HVDCLOUD_CHECKPOINT_DIR"].endswith(fact["HVDCLOUD_RUN"])
        assert int(fact["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize(
    ("controller", "how", "code"),
    [
        ("mpi", "3", 3),
        pytest.param("mpi", "signal", 137, marks=pytest.mark.nightly),
        pytest.param("gloo", "raise", 1, marks=pytest.mark.nightly),
        pytest.param("gloo", "3", 3, marks=pytest.mark.nightly),
        pytest.param("gloo", "signal", 137, marks=pytest.mark.nightly),
    ],
)
def test_the_exit_code_is_that_of_the_first_rank_to_fail(
    project: Project, controller: str, how: str, code: int
) -> None:
    # Horovod may end a rank over the loss of another one before that one's end is known.
    horovod = how == "raise" or (how, controller) == ("3", "gloo")
    job = jobs.ONE_ENDS if horovod else jobs.ONE_ENDS_ALONE
    ended = run(project, job, how, expect=7, options=("--controller", controller, "--json"))
    assert ended.json["exit_code"] == 7
    assert ended.json["result"]["exit_code"] == code
    assert ended.json["result"]["state"] == "failed"
    if how == "raise":
        # Both ranks end with 1: the one that raised and its peer, which Horovod ends at once; either may end first.
        said = f"rank 1 ({project.name}-1) raised RuntimeError: rank 1 has had enough (train.py:11)"
        assert ended.json["result"]["reason"] == ended.json["error"]["message"] == said
        assert ended.json["result"]["last_line"] == "RuntimeError: rank 1 has had enough"
    else:
        assert ended.json["result"]["reason"].startswith(f"rank 1 ({project.name}-1) ")
    assert "[launcher]" not in ended.err


def test_secrets_show_nowhere(project: Project, engine: Any) -> None:
    project.write("train.py", jobs.ENDLESS_ALONE)
    project.hvdcloud("run", "--detach")
    try:
        until(lambda: project.hvdcloud("logs").out.count("trains\n") == 2, what="both ranks to train")
        for node in (f"{project.name}-0", f"{project.name}-1"):
            container = engine.containers.get(node)
            assert TOKEN not in json.dumps(container.attrs)
            assert TOKEN not in json.dumps(container.top(ps_args="-eo pid,args"))
            assert TOKEN not in container.logs().decode(errors="replace")
            code, found = container.exec_run(["grep", "-rlF", TOKEN, "/var/lib/hvdcloud", "/root", "/etc", "/tmp"])
            assert (code, found) == (1, b"")
            # One process in the node may know it: the rank itself, through its 0600 file.
            _, mode = container.exec_run(["sh", "-c", "find /run/hvdcloud -name env.json | xargs stat -c %a"])
            assert mode.strip() == b"600"
        assert TOKEN not in project.hvdcloud("status", "--json").out
        assert TOKEN not in "".join(
            path.read_text(errors="replace") for path in project.state.rglob("*") if path.is_file()
        )
    finally:
        project.hvdcloud("stop")
    _, left = engine.containers.get(f"{project.name}-0").exec_run(["find", "/run/hvdcloud", "-name", "env.json"])
    assert left == b""


@pytest.mark.nightly
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_a_rank_that_saves_when_it_is_stopped_is_told_once_and_has_time(project: Project, controller: str) -> None:
    project.write("train.py", jobs.SAVES_AT_ITS_END)
    with project.started(
        "run", "--fresh", "--controller", controller, "--", "sh", "-c", "cd . && python train.py; true"
    ) as process:
        screen = Screen(process)
        screen.wait_for("trains\n", times=2)
        stopped = project.hvdcloud("stop")
        screen.end()
    assert "waiting up to 30s for the ranks to save (run.grace)" in stopped.err
    assert "waiting up to 30 s (run.grace) for the ranks to save and end" in screen.text
    assert screen.text.count("is told to end") == 2
    assert "rank 1 has saved" in screen.text
    assert "last.pt" in in_bucket(project)


def test_a_run_continues_after_its_terminal_is_gone_and_is_followed_and_stopped_from_another(project: Project) -> None:
    project.write("train.py", jobs.ENDLESS_ALONE)
    with project.started("run") as terminal:
        shown = terminal.stdout
        assert shown is not None
        until(lambda: "trains" in shown.readline(), what="the job to train")
        terminal.send_signal(signal.SIGHUP)
        terminal.wait(timeout=80)
    assert terminal.returncode == 130
    status = project.hvdcloud("status", "--json").json["result"]
    assert status["runs"][-1]["state"] == "running"
    active = project.hvdcloud("run", expect=2)
    assert "is still active" in active.err
    assert "hvdcloud stop" in active.err
    with project.started("logs", "-f") as follower:
        stopped = project.hvdcloud("stop", "--json").json["result"]
        out, _ = follower.communicate(timeout=300)
    assert stopped["state"] == "stopped"
    assert stopped["checkpoints_complete"]
    assert "[0] rank 0 trains" in out
    assert follower.returncode == 7


def test_a_second_run_continues_from_the_first_ones_checkpoints(project: Project, tmp_path: Path) -> None:
    found = []
    for options in (("--fresh",), (), ()):
        ended = run(project, jobs.COUNTS_UP, options=options)
        found.append(sorted(re.findall(r"rank \d found \d and \d", ended.out)))
        assert ("(--fresh starts empty)" in ended.err) == (len(found) > 1)
    assert found == [[f"rank {rank} found {count} and {count}" for rank in (0, 1)] for count in (0, 1, 2)]
    pulled = project.hvdcloud("pull", "--to", str(tmp_path / "out"), "--json").json["result"]["runs"]
    # Files that a run was only given back belong to the run that wrote them.
    folder = Path(pulled[-1]["folder"])
    newest = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert newest == ["count-3.pt", "workspace/runs/count-3.h5"]


def test_status_says_why_the_newest_run_failed(project: Project) -> None:
    run(project, jobs.ONE_ENDS_ALONE, "raise", expect=7)
    said = f"rank 1 ({project.name}-1) raised RuntimeError: rank 1 has had enough (train.py:8)"
    assert said in project.hvdcloud("status").out
    newest = project.hvdcloud("status", "--json").json["result"]["runs"][-1]
    assert (newest["reason"], newest["last_line"]) == (said, "RuntimeError: rank 1 has had enough")
    printed = project.hvdcloud("logs")
    assert said in printed.err
    assert "[launcher]" not in printed.out
    assert "[launcher]" in project.hvdcloud("logs", "--verbose").out


def test_ssh_works_without_a_prompt_from_here_and_between_nodes(project: Project) -> None:
    assert project.hvdcloud("ssh", "0", "hostname").out == f"{project.name}-0\n"
    assert project.hvdcloud("ssh", "1", "--", "hostname").out == f"{project.name}-1\n"
    assert project.hvdcloud("ssh", "0", "--", "ssh", f"{project.name}-1", "hostname").out == f"{project.name}-1\n"
    assert project.hvdcloud("ssh", "1", "--", "ssh", f"{project.name}-0", "hostname").out == f"{project.name}-0\n"
    config = project.state / project.name / "ssh_config"
    done = subprocess.run(["ssh", "-F", config, "1", "hostname"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{project.name}-1\n"
    assert "StrictHostKeyChecking yes" in config.read_text()
    assert "no node 7" in project.hvdcloud("ssh", "7", expect=2).err


def test_down_refuses_until_every_checkpoint_is_verified_on_disk(engine: Any, image: str, tmp_path: Path) -> None:
    # A cluster of its own: the others continue with theirs.
    project = project_in(tmp_path, "t-runs-down")
    project.hvdcloud("up")
    run(project, jobs.COUNTS_UP)
    refused = project.hvdcloud("down", expect=9)
    assert "count-" in refused.err
    assert "hvdcloud pull" in refused.err
    assert len(labelled(engine, project.name)) == 3
    pulled = project.hvdcloud("pull", "--to", str(tmp_path / "out"), "--json").json["result"]["runs"]
    newest = next(Path(pulled[-1]["folder"]).glob("workspace/runs/count-*.h5"))
    newest.write_bytes(b"something else")
    assert newest.name in project.hvdcloud("down", expect=9).err
    newest.unlink()
    assert newest.name in project.hvdcloud("down", expect=9).err
    project.hvdcloud("pull", "--to", str(tmp_path / "out"))
    assert "nothing left" in project.hvdcloud("down").out
    assert labelled(engine, project.name) == []
    assert "nothing to delete" in project.hvdcloud("down").out
