"""`prepare`: make this node ready for a run: code, environment, secrets, the checkpoints to resume from. Its data sets
are begun to be fetched."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import IO, Any

from hvdcloud.checkpoints.names import WORKSPACE
from hvdcloud.errors import HvdcloudError, NodeError, UsageError
from hvdcloud.node import machine, paths
from hvdcloud.node.files import read_json
from hvdcloud.node.records.active import ActiveRunError, active_run, live_agents
from hvdcloud.node.records.secrets_file import write_private
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.sync import Entry, Sync
from hvdcloud.node.uploads.outputs import Outputs, set_aside
from hvdcloud.node.uploads.restore import gather, restore
from hvdcloud.node.uploads.run_bucket import open_run_bucket

_END_OF_ARCHIVE = 1024
"""Bytes: a tar archive ends with two empty blocks."""


def main(source: IO[bytes], answer: IO[bytes]) -> dict[str, Any]:
    """Read the header, say which files are wanted, receive them. Returns the closing line.

    Args:
        source: one line of JSON, then a tar stream with the wanted files.
        answer: where the line with the wanted files goes.

    Raises:
        UsageError: the header cannot be used, a path leads out of the workspace, or another run is active.
        NodeError: a file changed or is missing.
    """
    try:
        header = json.loads(source.readline())
        entries = [Entry.parse(value) for value in header["files"]]
        environment = {str(name): str(value) for name, value in header["env"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"prepare: the header cannot be used: {error!r}", hint="hvdcloud run again") from error
    spec = Spec.from_mapping({"cores": machine.cores(), "name": machine.name(), **header})
    refuse_while_active()
    if spec.data is not None:
        from hvdcloud.node.data import fetcher
        from hvdcloud.node.data.sets import DataRequest

        # Beside the code; the agent waits for it.
        fetcher.start(DataRequest.from_json(spec.data))
    set_aside(before=spec.run, project=(read_json(paths.sync_file()) or {}).get("files", {}))
    sync = Sync(workspace=paths.workspace(), record=paths.sync_file(), entries=entries)
    wanted = sync.plan()
    answer.write(json.dumps({"want": wanted}).encode() + b"\n")
    answer.flush()
    try:
        if wanted:
            _receive(source, sync, {entries[index].path: entries[index] for index in wanted})
        else:
            # The archive comes all the same, with nothing in it; its sender must not find this process gone.
            source.read(_END_OF_ARCHIVE)
        sync.commit()
    except BaseException:
        sync.abandon()
        raise
    write_private(spec.run, environment=environment, notify=header.get("notify"))
    checkpoints = paths.checkpoints_dir(spec.run)
    checkpoints.mkdir(parents=True, exist_ok=True)
    Outputs(spec.run, spec.workspace_bytes).begin()
    restored = _restore(spec, checkpoints) if spec.resume else 0
    if header.get("joins"):
        _bring_outputs(spec, checkpoints)
    (paths.run_dir(spec.run) / "ranks").mkdir(parents=True, exist_ok=True)
    spec.save()
    return {"ok": True, "restored": restored}


def refuse_while_active() -> None:
    """A live run's code must not change under it. Raises ActiveRunError: the head has a live supervisor, or this node a
    live agent."""
    if active := active_run() or next(iter(live_agents()), None):
        raise ActiveRunError(active)


def _receive(source: IO[bytes], sync: Sync, wanted: dict[str, Entry]) -> None:
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                entry = wanted.get(member.name)
                content = archive.extractfile(member) if member.isreg() else None
                if entry is None or content is None:
                    raise UsageError(f"{member.name!r} was sent but not asked for", hint="hvdcloud run again")
                with content:
                    sync.put(entry, content)
    except (tarfile.TarError, EOFError) as error:
        raise NodeError(f"the project's files did not arrive whole: {error}", hint="hvdcloud run again") from error


def _restore(spec: Spec, directory: Path) -> int:
    assert spec.resume is not None
    restored: int = restore(open_run_bucket(spec), cluster=spec.cluster, run_from=spec.resume, directory=directory)
    return restored


def _bring_outputs(spec: Spec, directory: Path) -> None:
    """Get what the ranks of other nodes have written in the project's folder by now."""
    try:
        gather(open_run_bucket(spec), cluster=spec.cluster, run=spec.run, directory=directory, only=f"{WORKSPACE}/")
    except HvdcloudError as error:
        # The run has it in memory: this node can train without.
        sys.stderr.write(f"hvdcloud: {error}\n")
