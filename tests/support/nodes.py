"""Nodes without containers: the real node program in a folder per node, and stand-ins for ssh and horovodrun.

The stand-in for ssh runs the command here, in the folder of the node that was named; the one for horovodrun starts a
process per rank, prefixes what they print and ends them all when one fails, as Horovod's Gloo launcher does.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hvdcloud.node.files import read_json
from hvdcloud.runs.spec import DataRequest
from tests.support.harness import DEADLINE, until

REPOSITORY = Path(__file__).resolve().parents[2]
# Of this process alone: a run's processes are found by its id, on the whole machine.
RUN = f"20261121-101112-{secrets.token_hex(3)}"

AT_WORK = ("/bin/sh", "-c", "echo at work; exec sleep 600")
"""A job that trains forever, without a start of Python."""

_SSH = """#!/bin/sh
while :; do
    case "$1" in
    -T) shift ;;
    -o) shift 2 ;;
    *) break ;;
    esac
done
node=$1; shift
aliases="{base}/{head}/root/.ssh/aliases"
if [ -e "$aliases" ]; then
    found=$(awk -v name="$node" '$1 == "Host" {{ ours = $2 == name }} ours && /HostName/ {{ print $2 }}' "$aliases")
    node=${{found:-$node}}
fi
if [ -e "{base}/unreachable-$node" ]; then
    echo "ssh: connect to host $node port 2222: No route to host" >&2
    exit 255
fi
case "$*" in
*" agent "*) [ ! -e "{base}/says-$node" ] || cat "{base}/says-$node" ;;
esac
export HVDCLOUD_NODE_ROOT="{base}/$node"
if [ -e "{base}/machine-$node" ]; then
    exec nsenter --target "$(cat "{base}/machine-$node")" --pid --mount -- sh -c "$*"
fi
exec sh -c "$*"
"""

_NODE_PROGRAM = """#!/bin/sh
PYTHONPATH={repository} exec {python} -m hvdcloud.node "$@"
"""

_HOROVODRUN = """#!/usr/bin/env -S {python} -IS
# Modules that load fast: nearly every test starts it.
import os, select, signal, sys

arguments = sys.argv[1:]
at = arguments.index("hvdcloud-node")
options, command = arguments[:at], arguments[at:]
np = int(options[options.index("-np") + 1])
slots = [h.split(":")[0] for h in options[options.index("-H") + 1].split(",") for _ in range(int(h.split(":")[1]))]
with open("{base}/horovodrun.seen", "w") as file:
    print(sys.argv, dict(os.environ), file=file)

def write(data):
    # Where nothing reads it any more, the ranks have others that end them.
    try:
        while data:
            data = data[os.write(1, data):]
    except OSError:
        pass

write(b"launcher speaks\\n")
ranks, codes, tags, rest = [], {{}}, {{}}, {{}}
for rank in range(np):
    environment = {{**os.environ, "HOROVOD_RANK": str(rank), "HVDCLOUD_NODE_ROOT": "{base}/" + slots[rank]}}
    pipes = {{number: os.pipe() for number in (1, 2)}}
    streams = [(os.POSIX_SPAWN_DUP2, end, number) for number, (_, end) in pipes.items()]
    ranks.append(os.posix_spawnp(command[0], command, environment, file_actions=streams))
    for name, (reader, writer) in zip((b"stdout", b"stderr"), pipes.values()):
        os.close(writer)
        tags[reader], rest[reader] = b"[%d]<%b>:" % (rank, name), b""

def end(*_):
    for each in ranks:
        if each not in codes:
            os.kill(each, signal.SIGTERM)

def wait(*_):
    for each in ranks:
        if each not in codes:
            try:
                pid, status = os.waitpid(each, os.WNOHANG)
            except ChildProcessError:
                # The round that this signal has interrupted has it.
                continue
            if pid:
                codes[each] = os.waitstatus_to_exitcode(status)
    if any(codes.values()):
        end()

wakes, wakeup = os.pipe()
os.set_blocking(wakeup, False)
signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGCHLD, wait)
wait()
while tags or len(codes) < np:
    for reader in select.select([wakes, *tags], [], [])[0]:
        data = os.read(reader, 1 << 16)
        if reader == wakes:
            continue
        *lines, rest[reader] = (rest[reader] + data).split(b"\\n")
        write(b"".join(tags[reader] + line + b"\\n" for line in lines))
        if not data:
            os.close(reader)
            tag = tags.pop(reader)
            write(tag + rest[reader] if rest[reader] else b"")
sys.exit(1 if any(codes.values()) else 0)
"""


class NodeCluster:
    """Nodes n0, n1, … in folders below `base`.

    Args:
        base: an empty folder.
        nodes: how many.
        names: other names than these.
    """

    def __init__(self, base: Path, *, nodes: int = 2, names: Sequence[str] = ()) -> None:
        self.base = base
        self.names = list(names) or [f"n{index}" for index in range(nodes)]
        self.head = self.names[0]
        self.bucket = base / "bucket"
        self.bucket.mkdir()
        self.grace = 30.0
        """`run.grace` of the runs that are prepared."""
        self.launcher = "horovod"
        """`run.launcher` of the runs that are prepared."""
        self._tools = base / "bin"
        self._tools.mkdir()
        for name, text in (("ssh", _SSH), ("hvdcloud-node", _NODE_PROGRAM), ("horovodrun", _HOROVODRUN)):
            self.add_tool(name, text)
        for name in self.names:
            self.add_node(name)

    def add_tool(self, name: str, text: str) -> None:
        """A program that every node has."""
        words = {"base": str(self.base), "head": self.head, "repository": str(REPOSITORY), "python": sys.executable}
        tool = self._tools / name
        tool.write_text(text.format(**words))
        tool.chmod(0o755)

    def add_node(self, name: str) -> None:
        """What a node has when it has just started."""
        node_file = self.root(name) / "var/lib/hvdcloud/node.json"
        node_file.parent.mkdir(parents=True)
        environment = {"PATH": f"{self._tools}:{os.environ['PATH']}", "FROM_THE_IMAGE": "yes"}
        node_file.write_text(json.dumps({"name": name, "cores": 4, "environment": environment}))

    def root(self, name: str) -> Path:
        """A node's `/`."""
        return self.base / name

    def has_metadata_server(self, name: str, url: str) -> None:
        """From now on a node has one, as the entrypoint writes it down on a VM."""
        file = self.root(name) / "var/lib/hvdcloud/node.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "metadata": url}))

    def run_dir(self, name: str | None = None) -> Path:
        """Where a node, the head by default, keeps the run."""
        return self.root(name or self.head) / "var/lib/hvdcloud/runs" / RUN

    def log(self) -> str:
        """The run's log so far; "" before its first line."""
        file = self.run_dir() / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def environment(self, name: str) -> dict[str, str]:
        """For a verb on a node."""
        return {**node_environment(self.root(name)), "PATH": f"{self._tools}:{os.environ['PATH']}"}

    def start(self, name: str, *verb: str) -> subprocess.Popen[bytes]:
        """A verb on a node, as a process."""
        return start_verb(*verb, root=self.root(name), env=self.environment(name))

    def call(self, name: str, function: str) -> subprocess.Popen[bytes]:
        """A function of the node program without arguments, `MODULE:FUNCTION`, as a process on a node."""
        module, _, attribute = function.partition(":")
        code = f"from {module} import {attribute}; {attribute}()"
        return start_verb(root=self.root(name), env=self.environment(name), program=("-c", code))

    def verb(
        self, name: str, *verb: str, payload: Mapping[str, Any] | None = None, content: bytes = b""
    ) -> dict[str, Any]:
        """A verb's answer; `content`: what follows the payload."""
        data = json.dumps(payload).encode() + b"\n" if payload is not None else b""
        out, errors = self.start(name, *verb).communicate(data + content, timeout=DEADLINE)
        assert out, errors.decode()
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer

    def prepare(
        self,
        command: Sequence[str],
        *,
        run: str = RUN,
        env: Mapping[str, str] | None = None,
        code: Mapping[str, str] | None = None,
        elastic: Mapping[str, Any] | None = None,
        data: DataRequest | None = None,
        notify: str | None = None,
    ) -> list[dict[str, Any]]:
        """`code` and `prepare` on every node; the closing lines."""
        answers = []
        contents = {path: text.encode() for path, text in (code or {"train.py": "print('trains')\n"}).items()}
        for index, name in enumerate(self.names):
            header = {
                "run": run,
                "cluster": "digits",
                "node": index,
                "bucket": self.bucket.as_uri(),
                "keep_every": 0.2,
                "slots": 1,
                "command": list(command),
                "env": dict(env or {}),
                "launcher": self.launcher,
                "elastic": elastic,
                **({"notify": notify} if notify and not index else {}),
                "grace": self.grace,
                **({"data": replace(data, index=index, count=len(self.names)).to_json()} if data else {}),
                "files": [entry(path, data) for path, data in contents.items()],
            }
            answers.append(self.send_code(name, header, contents))
        return answers

    def send_code(self, name: str, header: Mapping[str, Any], contents: Mapping[str, bytes]) -> dict[str, Any]:
        """The laptop's side of `code` and `prepare`; the closing line, with `want` in it."""
        lacks = self.verb(name, "code", payload={"run": header["run"], "files": header["files"]})
        if "error" in lacks:
            return lacks
        wanted = [header["files"][index]["path"] for index in lacks["want"]]
        return {**lacks, **self.verb(name, "prepare", payload=header, content=code_archive(contents, wanted))}

    def change_spec(self, name: str, **changes: Any) -> None:
        """Change what a node was told of the run."""
        file = self.run_dir(name) / "spec.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def launch(self, *, gloo_timeout: float = 6.0) -> dict[str, Any]:
        """`launch` on the head."""
        ranks, hosts = len(self.names), ",".join(f"{name}:1" for name in self.names)
        self.change_spec(
            self.head,
            hosts=[{"name": name, "index": index, "slots": 1} for index, name in enumerate(self.names)],
            np=ranks,
            horovodrun=["horovodrun", "--gloo", "-np", str(ranks), "-H", hosts] if self.launcher == "horovod" else [],
            gloo_timeout=gloo_timeout,
        )
        return self.verb(self.head, "launch", RUN)

    def start_run(self, script: str | Sequence[str], **options: Any) -> None:
        """Prepare and launch a Python script, or another command, on every rank."""
        answers = self.prepare([sys.executable, "-c", script] if isinstance(script, str) else script, **options)
        assert all(answer.get("ok") for answer in answers), answers
        assert self.launch() == {"ok": True}

    def state(self) -> dict[str, Any]:
        """The run's state as the head reports it."""
        answer = self.verb(self.head, "state", RUN)
        state: dict[str, Any] = answer["runs"][0]
        return state

    def written(self) -> dict[str, Any]:
        """The run's state in its file, {} before it has one: to ask the head for it takes a process each time."""
        return read_json(self.run_dir() / "state.json") or {}

    def wait_done(self) -> dict[str, Any]:
        """The state of the run once it has ended."""

        def done() -> dict[str, Any] | None:
            state = self.written()
            return state if state.get("state") == "done" else None

        return until(done, what="the end of the run")

    def wait_for_log(self, text: str, *, times: int = 1) -> None:
        """Until the log has `text` that often."""
        until(lambda: self.log().count(text) >= times, what=f"{text!r} in the log:\n{self.log()}")

    def supervisor(self) -> int:
        """Process id of the run's supervisor."""
        holder = json.loads((self.root(self.head) / "run/hvdcloud/supervisor").read_text())
        return int(holder["pid"])

    def agent(self, name: str) -> int:
        """Process id of a node's agent."""
        holder = json.loads((self.root(name) / f"run/hvdcloud/{RUN}.agent").read_text())
        return int(holder["pid"])

    def horovodrun(self) -> int:
        """Process id of the launcher."""
        supervisor = self.supervisor()
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        return next(int(pid) for pid in children if b"horovodrun" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def user_pids(self) -> list[int]:
        """The users' processes on all nodes that have left a checkpoint `pid-PID`."""
        return [int(path.name[4:]) for name in self.names for path in self.root(name).rglob("checkpoints/*/pid-*")]

    def is_gone(self) -> bool:
        """End what runs on the nodes, and remove their folder.

        To be asked until it is true: a process that just starts another program is not known by its environment.
        """
        self.end_everything()
        shutil.rmtree(self.base, ignore_errors=True)
        return not self.base.exists()

    def end_everything(self) -> None:
        """After a test, passed or failed."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                # That of a process that has ended is empty.
                environment, folder = (path / "environ").read_bytes(), (path / "cwd").readlink()
            except OSError:
                continue
            if f"HVDCLOUD_NODE_ROOT={self.base}/".encode() in environment or folder.is_relative_to(self.base):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.name), 9)


AnyCluster = TypeVar("AnyCluster", bound=NodeCluster)


@contextmanager
def gone_afterwards(make: Callable[[Path], AnyCluster]) -> Iterator[AnyCluster]:
    """Nodes that are gone afterwards, with all that still ran on them.

    Args:
        make: makes them in a folder.
    """
    # pytest's own temporary folders are too deep for the path of a Unix socket.
    folder = Path(tempfile.mkdtemp(prefix="hvd-", dir="/tmp"))
    cluster = make(folder)
    try:
        yield cluster
    finally:
        until(cluster.is_gone, what=f"the end of all processes that write into {folder}")


def node_cluster(*, nodes: int = 2) -> AbstractContextManager[NodeCluster]:
    """Nodes without containers, for the block."""
    return gone_afterwards(lambda folder: NodeCluster(folder, nodes=nodes))


def node_environment(root: Path) -> dict[str, str]:
    """Of the node program, where a folder is its node's `/`."""
    return {**os.environ, "HVDCLOUD_NODE_ROOT": str(root), "PYTHONPATH": str(REPOSITORY)}


def start_verb(
    *verb: str, root: Path, env: Mapping[str, str] | None = None, program: Sequence[str] = ("-m", "hvdcloud.node")
) -> subprocess.Popen[bytes]:
    """A verb of the node program, as a process that runs in its node's `/`."""
    root.mkdir(parents=True, exist_ok=True)
    env = env or node_environment(root)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *program, *verb], cwd=root, env=env, stdin=pipe, stdout=pipe, stderr=pipe)


def entry(path: str, data: bytes) -> dict[str, Any]:
    """One listed file of the project."""
    return {"path": path, "size": len(data), "mode": 0o644, "sha256": hashlib.sha256(data).hexdigest()}


def code_archive(contents: Mapping[str, bytes], wanted: Sequence[str]) -> bytes:
    """What a node lacks, as the laptop sends it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in wanted:
            member = tarfile.TarInfo(path)
            member.size = len(contents[path])
            archive.addfile(member, io.BytesIO(contents[path]))
    return made.getvalue()


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that only waits to be reaped does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in ("Z", "X")


def wait_gone(pids: Sequence[int]) -> None:
    """Until none of the processes runs."""
    started = time.monotonic()
    until(lambda: all(is_gone(pid) for pid in pids), what=f"the end of {pids} since {started:.1f}")
