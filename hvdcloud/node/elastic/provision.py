"""The head prepares another node for an active run, as the laptop did when it began, from its own copy.

Code, environment and secrets are those with which the run began, even if the project on the laptop has changed since.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hvdcloud.errors import NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node import paths
from hvdcloud.node.channel import Mailbox
from hvdcloud.node.elastic.membership import Member, Place
from hvdcloud.node.files import read_json
from hvdcloud.node.mesh import ssh
from hvdcloud.node.records.secrets_file import read_environment, write_private
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.sync import is_unchanged, sha256_of
from hvdcloud.runs.spec import RunSpec

PREPARE_SECONDS = 120.0
"""For a workspace of some GB; one that takes longer is tried again."""
AGAIN_SECONDS = 10.0
"""Between two attempts to prepare a node."""


class UnreachableError(NodeError):
    """The node does not answer."""


def spec_of(member: Member, spec: Spec) -> RunSpec:
    """What a node that joins knows of the run. It gets its predecessor's share of a data set, or one that another node
    has too: there are as many as nodes began."""
    began, data = spec.names, spec.data
    if data is not None:
        share = began.index(member.name) if member.name in began else member.index % len(began)
        data = replace(data, index=share)
    # What the run resumed from is in the memory of the nodes that train.
    return replace(spec, resume=None, node=member.index, slots=member.slots, data=data)


def _files() -> list[dict[str, Any]]:
    """The project's files: those that the last sync recorded, as ranks may have changed them since."""
    known, workspace = (read_json(paths.sync_file()) or {}).get("files", {}), paths.workspace()
    files = []
    for path in sorted(known):
        file = {"path": path, **{key: known[path][key] for key in known[path] if key != "mtime_ns"}}
        if "link" not in file and not is_unchanged(status := (workspace / path).stat(), known[path]):
            file |= {"size": status.st_size, "sha256": sha256_of(workspace / path)}
        files.append(file)
    return files


def provision(member: Member, spec: Spec, environment: dict[str, str]) -> None:
    """Prepare a node; blocks until it is ready for its agent, which waits for its data.

    Args:
        environment: of the ranks, as it was when the run began: secrets are deleted when it ends on the head.

    Raises:
        UnreachableError: it cannot be reached.
        NodeError: it refuses, or takes too long.
        OSError: a file of the project changes, or what the head has for its own ranks cannot be written again.
    """
    node = member.name
    if node == spec.names[0]:
        write_private(spec.run, environment=environment)
        return
    files = _files()
    header = {**spec_of(member, spec).to_json(), "env": environment, "joins": True, "files": files}
    with subprocess.Popen(
        ssh.node_command(node, "prepare", seconds=PREPARE_SECONDS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin
        # Where the node refuses or goes, the pipe breaks; its answer says why.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(header).encode() + b"\n")
            with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.PAX_FORMAT, dereference=True) as archive:
                for file in (file for file in files if "link" not in file):
                    archive.add(paths.workspace() / file["path"], file["path"], recursive=False)
        answer, said = process.communicate()
    if process.returncode != 0:
        error = (parse_object(answer.strip().rpartition(b"\n")[2]) or {}).get("error")
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        why = str(error or last or f"exit code {process.returncode}")
        kind = UnreachableError if process.returncode == ssh.FAILED else NodeError
        raise kind(f"node {node} could not be made ready: {why}", hint="hvdcloud ssh shows the node")


class Provisioning:
    """Prepares nodes that were lost, or are new, each in a thread of its own; again where that fails.

    Args:
        done: called by the main loop, with a node and why it could not be prepared.
    """

    def __init__(
        self, spec: Spec, selector: selectors.BaseSelector, *, done: Callable[[Member, Exception | None], None]
    ) -> None:
        self._spec = spec
        self._done = done
        self._mailbox = Mailbox()
        selector.register(self._mailbox, selectors.EVENT_READ, self._mailbox.deliver)
        self._environment = read_environment(spec.run)
        self._next: dict[str, float] = {}
        """When nodes are tried next, in monotonic seconds; infinite while they are."""

    def start(self, away: Iterable[Member], *, now: float) -> None:
        """Begin to prepare those that are due, of nodes that have no agent."""
        for member in away:
            if member.place in (Place.LOST, Place.PREPARING) and now >= self._next.get(member.name, now):
                self._next[member.name] = float("inf")
                threading.Thread(target=self._provision, args=(member,), name="provision", daemon=True).start()

    def put_off(self, node: str, *, now: float) -> None:
        """Do not try a node at once."""
        self._next[node] = now + AGAIN_SECONDS

    def forget(self, node: str) -> None:
        """Try a node at once: it is another one under the same name."""
        self._next.pop(node, None)

    def _provision(self, member: Member) -> None:
        failure: Exception | None = None
        try:
            provision(member, self._spec, self._environment)
        except Exception as error:  # noqa: BLE001 - reported by the main loop, and tried again
            failure = error
        self._mailbox.post(lambda: self._end(member, failure))

    def _end(self, member: Member, failure: Exception | None) -> None:
        self.put_off(member.name, now=time.monotonic())
        self._done(member, failure)
