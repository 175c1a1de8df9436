"""The head prepares another node for an active run, as the laptop did when it began, from its own copy.

Code, environment and secrets are those with which the run began, even if the project on the laptop has changed since.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from hvdcloud.errors import NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node import paths
from hvdcloud.node.elastic.membership import Member
from hvdcloud.node.files import read_json
from hvdcloud.node.mesh import ssh
from hvdcloud.node.records.secrets_file import read_environment, write_private
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.request import Request
from hvdcloud.node.run.sync import is_unchanged, sha256_of

_AS_ON_THE_HEAD = (
    *("run", "cluster", "bucket", "bucket_endpoint", "keep_every", "workspace_bytes", "command"),
    *("stuck", "grace"),
)
PREPARE_SECONDS = 120.0
"""For a workspace of some GB; one that takes longer is tried again."""


class UnreachableError(NodeError):
    """The node does not answer."""


class RunBundle(NamedTuple):
    """All that a node gets; collected when the run begins, since the files are deleted when it ends on the head."""

    request: Request
    header: dict[str, Any]
    workspace: Path

    @classmethod
    def of(cls, request: Request) -> RunBundle:
        """The bundle of a run that was prepared on this node. Raises UsageError: it was not."""
        words, option = request.horovodrun, "--network-interfaces"
        run = request.run
        spec = Spec.load(run)._asdict()
        header = {
            **{key: spec[key] for key in _AS_ON_THE_HEAD},
            "env": read_environment(run),
            # What the run resumed from is in the memory of the nodes that train.
            "resume": None,
            "elastic": True,
            "interface": words[words.index(option) + 1] if option in words else None,
            # With as many shares as nodes with ranks began.
            "data": None if request.data is None else request.data.to_json(),
            "joins": True,
        }
        return cls(request, header, paths.workspace())

    def share_of(self, member: Member) -> int:
        """Which share of a data set a node gets: that of its predecessor, or a share that another node has too."""
        assert self.request.elastic is not None
        began = [host.name for host in self.request.elastic.hosts if host.slots]
        return began.index(member.name) if member.name in began else member.index % max(1, len(began))


def _files(workspace: Path) -> list[dict[str, Any]]:
    """The project's files: those that the last sync recorded, as ranks may have changed them since."""
    known = (read_json(paths.sync_file()) or {}).get("files", {})
    files = []
    for path in sorted(known):
        file = {"path": path, **{key: known[path][key] for key in known[path] if key != "mtime_ns"}}
        if "link" not in file and not is_unchanged(status := (workspace / path).stat(), known[path]):
            file |= {"size": status.st_size, "sha256": sha256_of(workspace / path)}
        files.append(file)
    return files


def provision(bundle: RunBundle, member: Member) -> None:
    """Prepare a node; blocks until it is ready for its agent, which waits for its data.

    Raises:
        UnreachableError: it cannot be reached.
        NodeError: it refuses, or takes too long.
        OSError: what the head has for its own ranks cannot be written again.
    """
    node = member.name
    if node == bundle.request.hosts[0]:
        write_private(bundle.request.run, environment=bundle.header["env"])
        return
    files = _files(bundle.workspace)
    header = {**bundle.header, "node": member.index, "slots": member.slots, "files": files}
    if header["data"] is not None:
        header["data"] = {**header["data"], "index": bundle.share_of(member)}
    with subprocess.Popen(
        ssh.node_command(node, "prepare", seconds=PREPARE_SECONDS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        # Where the node refuses or goes, the pipe breaks; its answer says why.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(header).encode() + b"\n")
            _send(pipe, bundle.workspace, [file for file in files if "link" not in file])
        answer = process.stdout.read().decode(errors="replace")
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        error = (parse_object(answer.strip().rpartition("\n")[2]) or {}).get("error")
        why = str(error or said.rpartition("\n")[2] or f"exit code {process.returncode}")
        kind = UnreachableError if process.returncode == ssh.FAILED else NodeError
        raise kind(f"node {node} could not be made ready: {why}", hint="hvdcloud ssh shows the node")


def _send(pipe: IO[bytes], workspace: Path, files: Sequence[dict[str, Any]]) -> None:
    with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in files:
            info = tarfile.TarInfo(entry["path"])
            info.size, info.mode = entry["size"], entry["mode"]
            with (workspace / entry["path"]).open("rb") as content:
                if os.fstat(content.fileno()).st_size < info.size:
                    raise NodeError(f"{entry['path']} changed while it was sent", hint="hvdcloud logs")
                archive.addfile(info, content)
