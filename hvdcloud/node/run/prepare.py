"""`code` and `prepare`: make this node ready for a run: code, environment, secrets, the checkpoints to resume from."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Mapping
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


def code(request: Mapping[str, Any]) -> dict[str, Any]:
    """`code`: delete what the project has no longer, and say which of its files this node lacks.

    Args:
        request: `run`, that this node is made ready for, and `files`.

    Raises:
        UsageError: the request cannot be used, a path leads out of the workspace, or another run is active.
    """
    sync = _sync(request)
    wanted = sync.plan()
    sync.abandon()
    return {"want": wanted}


def main(header: Mapping[str, Any], source: IO[bytes]) -> dict[str, Any]:
    """`prepare`: the closing line.

    Args:
        source: has an archive of the files that `code` said are lacking, or of more.

    Raises:
        UsageError: the header cannot be used, a path leads out of the workspace, or another run is active.
        NodeError: a file changed or is missing.
    """
    try:
        environment = {str(name): str(value) for name, value in header["env"].items()}
    except (KeyError, AttributeError) as error:
        raise UsageError(f"prepare: the header cannot be used: {error!r}", hint="hvdcloud run again") from error
    spec = Spec.from_mapping({**header, "cores": machine.cores(), "name": machine.name()})
    sync = _sync(header)
    try:
        if wanted := sync.plan():
            _unpack(sync, {sync.entries[index].path: sync.entries[index] for index in wanted}, source)
        sync.commit()
    except BaseException:
        sync.abandon()
        raise
    write_private(spec.run, environment=environment, notify=header.get("notify"))
    checkpoints = paths.checkpoints_dir(spec.run)
    checkpoints.mkdir(parents=True, exist_ok=True)
    Outputs(spec.run, spec.workspace_bytes).begin()
    restored = 0
    if spec.resume:
        restored = restore(spec.open_bucket(), cluster=spec.cluster, run_from=spec.resume, directory=checkpoints)
    if header.get("joins"):
        _bring_outputs(spec, checkpoints)
    spec.save()
    return {"ok": True, "restored": restored}


def _sync(request: Mapping[str, Any]) -> Sync:
    """A sync of these files into the workspace, from which what another run has written was moved.

    Raises ActiveRunError: a run is active, whose code must not change.
    """
    try:
        run = paths.check_run_id(request["run"])
        entries = [Entry.parse(value) for value in request["files"]]
    except (KeyError, TypeError) as error:
        raise UsageError(f"the list of files cannot be used: {error!r}", hint="hvdcloud run again") from error
    if active := active_run() or next(iter(live_agents()), None):
        raise ActiveRunError(active)
    set_aside(before=run, project=(read_json(paths.sync_file()) or {}).get("files", {}))
    return Sync(workspace=paths.workspace(), record=paths.sync_file(), entries=entries)


def _unpack(sync: Sync, wanted: Mapping[str, Entry], source: IO[bytes]) -> None:
    """Put those of the archive's files into the workspace that are wanted."""
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                entry = wanted.get(member.name)
                content = archive.extractfile(member) if member.isreg() else None
                if entry is not None and content is not None:
                    with content:
                        sync.put(entry, content)
    except (tarfile.TarError, EOFError) as error:
        raise NodeError(f"the project's files did not arrive whole: {error}", hint="hvdcloud run again") from error


def _bring_outputs(spec: Spec, directory: Path) -> None:
    """Get what the ranks of other nodes have written in the project's folder by now."""
    try:
        gather(spec.open_bucket(), cluster=spec.cluster, run=spec.run, directory=directory, only=f"{WORKSPACE}/")
    except HvdcloudError as error:
        # The run has it in memory: this node can train without.
        sys.stderr.write(f"hvdcloud: {error}\n")
