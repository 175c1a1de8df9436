"""Running the real `hvdcloud` the way a person does: as a process, in a project's folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from tests.support.commands import Command

T = TypeVar("T")
Process = Command | subprocess.Popen[str]

# On what a test makes at the engine without hvdcloud.
TEST_LABEL = "hvdcloud-test"
HVDCLOUD = (sys.executable, "-m", "hvdcloud")
DEADLINE = 300.0
"""Seconds after which a test fails that waits for what has to happen: the same for all, on a machine however busy."""


def until(probe: Callable[[], T | None], *, what: str, pause: float = 1.0) -> T:
    """The first truthy thing that `probe` returns; fails the test if there is none in time.

    A probe that starts commands or asks an engine takes processors from what it waits for: it follows the one before
    after three times as long as that took.

    Args:
        pause: the most seconds between two of them; 0.05: what is looked for may pass.
    """
    deadline = time.monotonic() + DEADLINE
    while True:
        began = time.monotonic()
        found = probe()
        if found:
            return found
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"waited {DEADLINE:.0f} s for {what}")
        time.sleep(min(pause, max(0.05, 3 * (now - began))))


@contextmanager
def looking(process: Process | subprocess.Popen[bytes]) -> Iterator[None]:
    """A command stands still for the block, so that what the test sees does not pass before the test acts on it."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def sizes(folder: Path, pattern: str) -> list[int]:
    """Of the files in a folder that come and go, so far as they are still there."""
    found: list[int] = []
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found.append(path.stat().st_size)
    return found


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What `--json` printed."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    def expect(self, exit_code: int) -> Ended:
        """Fail with the whole output unless the exit code is this one."""
        assert self.exit_code == exit_code, f"exit code {self.exit_code}, not {exit_code}\n{self.out}\n{self.err}"
        return self


@dataclass
class Project:
    """A project's folder with its own state folder, so that tests never meet each other or the user."""

    folder: Path
    state: Path
    name: str
    environ: dict[str, str] = field(default_factory=dict)
    warm: bool = True
    """Its commands begin with hvdcloud's modules loaded (tests/support/commands.py)."""
    first: str = ""
    """`MODULE:FUNCTION` that is called in the processes of its commands, which must be warm, before anything else."""

    def env(self) -> dict[str, str]:
        """What the command sees."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HVDCLOUD_")}
        return {**inherited, "HVDCLOUD_STATE_DIR": str(self.state), **self.environ}

    def hvdcloud(self, *args: str, timeout: float = 600.0, expect: int | None = 0, before: Sequence[str] = ()) -> Ended:
        """Run a command to its end.

        Args:
            args: hvdcloud's.
            timeout: seconds, where it takes longer than `DEADLINE`.
            expect: the exit code; None for any.
            before: words of a program that runs hvdcloud, such as `unshare -m`.
        """
        with (
            tempfile.TemporaryFile("w+", errors="replace") as out,
            tempfile.TemporaryFile("w+", errors="replace") as err,
        ):
            process = self._start(before, args, stdout=out, stderr=err)
            try:
                process.wait(timeout=max(timeout, DEADLINE))
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            ended = Ended(process.wait(), out.read(), err.read())
        return ended if expect is None else ended.expect(expect)

    @contextmanager
    def started(self, *args: str, before: Sequence[str] = ()) -> Iterator[Process]:
        """A command that runs during the block, killed if it is still there at the end; `before` as for `hvdcloud`."""
        process = self._start(before, args, session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _start(
        self,
        before: Sequence[str],
        args: Sequence[str],
        *,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        session: bool = False,
    ) -> Process:
        if self.warm and not before:
            return Command(
                args,
                cwd=self.folder,
                env=self.env(),
                stdout=stdout,
                stderr=stderr,
                session=session,
                first=self.first,
            )
        assert not self.first
        return subprocess.Popen(
            [*before, *HVDCLOUD, *args],
            cwd=self.folder,
            env=self.env(),
            stdin=subprocess.DEVNULL,
            stdout=stdout or subprocess.PIPE,
            stderr=stderr or subprocess.STDOUT,
            start_new_session=session,
            text=True,
            errors="replace",
        )

    def write(self, name: str, text: str) -> None:
        """Put a file into the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def configure(self, **sections: Any) -> None:
        """Write hvdcloud.yaml (JSON is YAML). Folders, which it may not choose, go to the environment."""
        tree: dict[str, Any] = json.loads(json.dumps({"name": self.name, **sections}))
        for section, prefix in (("data", "HVDCLOUD_DATA__"), ("checkpoints", "HVDCLOUD_CHECKPOINTS__")):
            self.environ = {name: value for name, value in self.environ.items() if not name.startswith(prefix)}
            for name, value in list(tree.get(section, {}).items()):
                if str(value).startswith("file://"):
                    self.environ[prefix + name.upper()] = tree[section].pop(name)
        self.write("hvdcloud.yaml", json.dumps(tree, indent=2) + "\n")


def project_in(root: Path, name: str, **settings: Any) -> Project:
    """A project in a new folder, with the requirements that the tests' image has and checkpoints that leave soon."""
    (root / "project").mkdir(parents=True)
    project = Project(folder=root / "project", state=root / "state", name=name)
    project.write("requirements.txt", "scikit-learn\n")
    project.configure(**{"checkpoints": {"keep_every": 0.2}, **settings})
    return project


@contextmanager
def brought_up(project: Project, engine: Any, *, timeout: float = 600.0) -> Iterator[Project]:
    """The project with its cluster, of which nothing is left afterwards. `timeout`: seconds for `up`."""
    try:
        project.hvdcloud("up", timeout=timeout)
        yield project
    finally:
        project.hvdcloud("down", "--force")
        assert labelled(engine, project.name) == []


@contextmanager
def leaves_nothing(project: Project, engine: Any) -> Iterator[Project]:
    """A project whose cluster is not up: what the block has left of one is deleted, and fails the test."""
    yield project
    left = labelled(engine, project.name)
    if left:
        project.hvdcloud("down", "--force")
    assert left == []


class Screen:
    """What a started command prints; read all the time, so that it never waits for the test.

    Args:
        process: with standard output and error in one pipe, which nothing else reads.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._lines)

    @property
    def exit_code(self) -> int | None:
        """None: it runs."""
        return self._process.poll()

    def wait_for(self, words: str, *, times: int = 1) -> None:
        """Wait until `words` have been printed that many times; fails at once if the command ends before."""

        def printed() -> bool:
            over = not self._reader.is_alive()
            assert self.text.count(words) >= times or not over, self.text
            return self.text.count(words) >= times

        until(printed, what=f"{times} x {words!r}")

    def end(self) -> int:
        """Wait until the command has ended, and everything it printed is here; returns its exit code."""
        code = self._process.wait(timeout=DEADLINE)
        self._reader.join(timeout=DEADLINE)
        assert not self._reader.is_alive()
        return code


def labelled(engine: Any, cluster: str | None = None) -> list[str]:
    """Everything on the engine that carries our labels, as `kind name`."""
    label = f"hvdcloud-cluster={cluster}" if cluster else "managed-by=hvdcloud"
    filters = {"label": [label]}
    api = engine.api
    return [
        *(f"container {found['Names'][0]}" for found in api.containers(all=True, filters=filters)),
        *(f"network {found['Name']}" for found in api.networks(filters=filters)),
        *(f"volume {found['Name']}" for found in api.volumes(filters=filters).get("Volumes") or []),
    ]


def tags_of(engine: Any) -> set[str]:
    """What the engine calls its images, also while others come and go."""
    return {tag for image in engine.api.images() for tag in image["RepoTags"] or ()}


def share_engine(clean: Callable[[Any], list[str]] = lambda _: []) -> list[str]:
    """Use the engine for tests until this process ends: no other test session removes clusters meanwhile.

    Args:
        clean: is called with the engine's client if no other tests use it now.

    Returns:
        what `clean` returned.

    Raises:
        HvdcloudError: there is no engine.
    """
    lock = os.open(Path(tempfile.gettempdir()) / "hvdcloud-tests.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return []
    else:
        from hvdcloud.engine import connect

        client = connect()
        try:
            return clean(client)
        finally:
            client.close()
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def remove_leftovers(engine: Any) -> list[str]:
    """Remove what a killed test session left: the tests' clusters, and what carries the label hvdcloud-test.

    Returns:
        `kind name` of what was removed.
    """
    from tests.support.leftovers import remove_labelled

    def is_the_users(labels: Mapping[str, str]) -> bool:
        return TEST_LABEL not in labels and not labels["hvdcloud-cluster"].startswith("t-")

    return remove_labelled(engine, "hvdcloud-cluster", TEST_LABEL, unless=is_the_users)


def receives_files(engine: Any, container: str) -> bool:
    """Whether the project's files are on their way to a node, in an archive."""
    # The brackets keep the pattern from finding itself.
    looking = ["sh", "-c", "grep -sqzx '[p]repare' /proc/[0-9]*/cmdline"]
    return bool(engine.containers.get(container).exec_run(looking).exit_code == 0)


def freeze(container: Any) -> None:
    """Pause a container; again if runc gave up because processes come and go in it all the time."""
    from docker.errors import APIError

    def frozen() -> bool:
        try:
            container.pause()
        except APIError as error:
            if "unable to freeze" not in str(error):
                raise
            return False
        return True

    until(frozen, what=f"{container.name} to be frozen")


def running_children(word: str) -> list[psutil.Process]:
    """The processes that this one has started, with this in their command line, and that have not ended."""

    def has_it(child: psutil.Process) -> bool:
        # What has ended has no command line: also what another test started and nobody has waited for.
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            return word in " ".join(child.cmdline())
        return False

    return [child for child in psutil.Process().children() if has_it(child)]


def processes_in(engine: Any, container: str, words: Sequence[str]) -> list[str]:
    """Command lines in a container that contain all the words."""
    rows = engine.containers.get(container).top(ps_args="-eo pid,args")["Processes"]
    return [" ".join(row[1:]) for row in rows if all(word in " ".join(row[1:]) for word in words)]
