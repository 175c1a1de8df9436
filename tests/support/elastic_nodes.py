"""Nodes without containers for elastic runs: each is a PID namespace, which can be lost and come back.

Their names are addresses of the loopback network, so that workers are really connected to each other and a lost
connection is a real one. The stand-in for horovodrun asks the discovery script, starts a worker per listed host over
the stand-in for ssh, never uses a host again whose worker has failed, and ends as Horovod's elastic driver does.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hvdcloud.node.elastic.membership import MARGIN_BEATS
from hvdcloud.runs.horovod_args import elastic_argv
from hvdcloud.runs.launchers import default_ranks
from hvdcloud.runs.spec import DataRequest, Host
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, gone_afterwards

T = TypeVar("T")

_HOROVODRUN = """#!/usr/bin/env -S {python} -IS
import json, os, pathlib, shlex, subprocess, sys, threading, time

base = pathlib.Path("{base}")
at = sys.argv.index("hvdcloud-node")
options, command = sys.argv[:at], sys.argv[at:]
option = lambda name: options[options.index(name) + 1]
least, most, script = int(option("--min-np")), int(option("--max-np")), option("--host-discovery-script")
(base / "horovodrun.pid").write_text(str(os.getpid()))
writing = threading.Lock()
workers, failed, copying = {{}}, set(), []
succeeded, shown = False, None

def say(text):
    with writing:
        print(text, flush=True)

def copy(stream, tag):
    for line in iter(stream.readline, b""):
        with writing:
            sys.stdout.buffer.write(tag + line)
            sys.stdout.buffer.flush()

def start(alias, rank):
    words = [f"HOROVOD_RANK={{rank}}", f"HOROVOD_HOSTNAME={{alias}}", "exec", *map(shlex.quote, command)]
    line = " ".join(words)
    argv = ["sh", "-c", line] if alias == "{head}" else ["ssh", alias, line]
    worker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    copying.append(threading.Thread(target=copy, args=(worker.stdout, b"[%d]<stdout>:" % rank)))
    copying[-1].start()
    return worker

while True:
    lines = subprocess.run([script], capture_output=True, text=True, check=True).stdout.split()
    listed = {{line.partition(":")[0]: int(line.partition(":")[2]) for line in lines}}
    for alias, worker in workers.items():
        if worker.poll() is None:
            continue
        if worker.returncode == 0:
            succeeded = True
        elif alias in listed and alias not in failed:
            failed.add(alias)
            say(f"{{alias}} is blacklisted: {{worker.returncode}}")
    world = [alias for alias in listed if alias not in failed][:most]
    if not succeeded and len(world) >= least:
        for rank, alias in enumerate(world):
            if alias not in workers:
                workers[alias] = start(alias, rank)
    if world != shown:
        shown = world
        (base / ".world").write_text(json.dumps(world))
        (base / ".world").replace(base / "world")
        say(f"the world is {{world}}")
    if workers and all(worker.poll() is not None for worker in workers.values()):
        break
    time.sleep(0.1)
for thread in copying:
    thread.join()
sys.exit(0 if succeeded or any(worker.returncode == 0 for worker in workers.values()) else 1)
"""

TRAINER = """
import json, os, pathlib, socket, sys, time

base, port = pathlib.Path({base!r}), {port}
own = os.environ["HOROVOD_HOSTNAME"]
address = own.partition("-")[0]
checkpoints = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
(checkpoints / f"by-{{own}}").write_text(own)
listener = socket.create_server((address, port))
listener.setblocking(False)
links, shown = {{}}, None

def is_open(link):
    try:
        return link.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False

while True:
    world = json.loads((base / "world").read_text())
    if own not in world:
        raise SystemExit(f"{{own}} has been removed from elastic job")
    others = {{alias.partition("-")[0]: alias for alias in world if alias != own}}
    try:
        link, (peer, _) = listener.accept()
        links.setdefault(peer, []).append(link)
    except BlockingIOError:
        pass
    for peer in list(links):
        if peer not in others or not all(map(is_open, links[peer])):
            for link in links.pop(peer):
                link.close()
    for peer in others:
        if peer > address and peer not in links:
            try:
                here = (address, 0)
                links[peer] = [socket.create_connection((peer, port), timeout=1, source_address=here)]
            except OSError:
                pass
    if len(links) == len(others) and world != shown:
        shown = world
        print(f"{{own}} trains in a world of {{len(world)}}", flush=True)
    order = base / f"order-{{own}}"
    if order.exists():
        exec(order.read_text())
    time.sleep(0.02)
"""
"""What the workers run: connected to each other, they do what the test orders."""


class ElasticNodes(NodeCluster):
    """Nodes of an elastic run, the head first.

    Args:
        base: an empty folder.
        nodes: how many there are.
    """

    def __init__(self, base: Path, *, nodes: int) -> None:
        network = f"127.{os.getpid() % 250 + 1}.{secrets.randbelow(250) + 1}"
        super().__init__(base, names=[f"{network}.{number + 1}" for number in range(nodes)])
        self.pace = {"beat": 0.5}
        self.gloo_timeout = 1.0
        self._port = 20000 + secrets.randbelow(10000)
        self._machines: dict[str, subprocess.Popen[bytes]] = {}
        self.add_tool("horovodrun", _HOROVODRUN)
        self.add_tool("python", '#!/bin/sh\nexec {python} "$@"\n')
        for name in self.names[1:]:
            self.switch_on(name)

    def switch_on(self, name: str) -> None:
        """A node that runs, or runs again."""
        words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]
        machine = subprocess.Popen(words, env=self.environment(name), stderr=subprocess.DEVNULL)
        self._machines[name] = machine
        children = Path(f"/proc/{machine.pid}/task/{machine.pid}/children")
        first = until(lambda: children.read_text().split(), what=f"the first process of {name}")
        (self.base / f"machine-{name}").write_text(first[0])
        (self.base / f"unreachable-{name}").unlink(missing_ok=True)

    def lose(self, name: str) -> None:
        """A node goes with all that runs on it; its disk stays."""
        (self.base / f"unreachable-{name}").touch()
        os.kill(int((self.base / f"machine-{name}").read_text()), signal.SIGKILL)
        self._machines.pop(name).wait(10)
        shutil.rmtree(self.root(name) / "run", ignore_errors=True)

    def signal(self, name: str, number: int) -> None:
        """A signal to all that runs on a node."""
        machine = (self.base / f"machine-{name}").read_text()
        subprocess.run(["nsenter", "--target", machine, "--pid", "sh", "-c", f"kill -{number} -1"], check=True)

    def add(self) -> str:
        """One more node, of which the run does not know yet. Returns its name."""
        name = f"{self.head.rpartition('.')[0]}.{len(self.names) + 1}"
        self.names.append(name)
        self.add_node(name)
        self.switch_on(name)
        return name

    def end_everything(self) -> None:
        """After a test, passed or failed."""
        super().end_everything()
        for machine in self._machines.values():
            machine.kill()
            machine.wait(10)

    def begin(
        self,
        *,
        least: int = 1,
        env: Mapping[str, str] | None = None,
        data: DataRequest | None = None,
    ) -> None:
        """Prepare and launch the trainer on all nodes, and wait until all train with each other.

        Args:
            least: nodes, all of them counted.
            env: of the workers.
            data: what nodes fetch before that; then nothing is waited for.
        """
        script = TRAINER.format(base=str(self.base), port=self._port)
        elastic = {"min": least, "max": 8}
        answers = self.prepare([sys.executable, "-c", script], env=env, elastic=elastic, data=data)
        assert all(answer.get("ok") for answer in answers), answers
        hosts = [Host(name=name, index=index, slots=1) for index, name in enumerate(self.names)]
        self.change_spec(
            self.head,
            hosts=[asdict(host) for host in hosts],
            np=default_ranks(hosts),
            horovodrun=elastic_argv(hosts=hosts, least=least, most=8, interface="lo", gloo_timeout=1),
            gloo_timeout=self.gloo_timeout,
            **self.pace,
        )
        assert self.verb(self.head, "launch", RUN) == {"ok": True}
        if data:
            return
        self.wait_for_world([host.name for host in hosts if host.slots])

    def admit(self, name: str) -> dict[str, Any]:
        """Ask the supervisor to take a node."""
        host = {"name": name, "index": self.names.index(name), "slots": 1}
        return self.verb(self.head, "admit", RUN, payload={"hosts": [host]})

    def dismiss(self, *names: str) -> dict[str, Any]:
        """Ask the supervisor to let nodes go; its answer."""
        return self.verb(self.head, "dismiss", RUN, payload={"nodes": list(names)})

    def order(self, alias: str, statement: str) -> None:
        """Have a worker do something."""
        temporary = self.base / ".order"
        temporary.write_text(statement)
        temporary.replace(self.base / f"order-{alias}")

    def horovodrun(self) -> int:
        """Its process id."""
        return int((self.base / "horovodrun.pid").read_text())

    def current(self) -> dict[str, Any]:
        """state.json as it is."""
        state: dict[str, Any] = json.loads((self.run_dir() / "state.json").read_text())
        return state

    def member(self, name: str) -> dict[str, Any]:
        """A node, as state.json has it."""
        return next(each for each in self.current()["members"] if each["name"] == name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Those of one kind, oldest first."""
        lines = (self.run_dir() / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait_until(self, probe: Callable[[], T | None], what: str) -> T:
        """The first truthy thing that `probe` returns; with the log if there is none."""
        try:
            return until(probe, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}\n{self.current()}") from None

    def settle(self) -> None:
        """Until Horovod is left to recover from a loss by itself: the last change of its hosts is long ago."""
        quiet = self.gloo_timeout + MARGIN_BEATS * self.pace["beat"]
        hosts = self.run_dir() / "hosts"
        self.wait_until(lambda: time.time() > hosts.stat().st_mtime + quiet + 1.0, "a list that is old")

    def wait_for_world(self, aliases: Sequence[str]) -> None:
        """Until these workers, and no others, train with each other and the state says so."""

        def formed() -> bool:
            state = self.current()
            listed = {member["alias"] for member in state.get("members", ()) if member["state"] == "listed"}
            words = [f"{alias} trains in a world of {len(aliases)}" for alias in aliases]
            return (
                listed == set(aliases)
                and state.get("world") == len(aliases)
                and all(word in self.log() for word in words)
            )

        self.wait_until(formed, f"a world of {list(aliases)}")


def elastic_nodes(nodes: int) -> AbstractContextManager[ElasticNodes]:
    """Nodes of an elastic run, for the block."""
    return gone_afterwards(lambda folder: ElasticNodes(folder, nodes=nodes))


needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False).returncode
    != 0,
    reason="a node of these tests is a PID namespace, which only root may make here",
)
