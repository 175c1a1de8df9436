"""`bucket`: what the laptop asks of the bucket that this node has for itself.

Where nodes and laptop share no storage, each node's checkpoints go to a folder bucket of its own. The laptop brings its
objects home by SFTP (hvdcloud/remote/mirror.py), and in the same way puts those of earlier runs into a folder for
what has not arrived whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvdcloud.checkpoints.manifest import FOLDER, list_runs, run_prefix
from hvdcloud.errors import UsageError
from hvdcloud.node import paths
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.replica import Original, Replicas

RECEIVED = "received"
"""Names the folder for what has not arrived whole."""


def main(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one request: `look`, `lacks` or `keep`.

    Raises:
        UsageError: it is none.
        CheckpointError: what was put there is not what was promised, or cannot be stored.
    """
    bucket = FolderBucket(paths.bucket_dir())
    replicas = Replicas(bucket, key=RECEIVED)
    try:
        if request["op"] == "look":
            return {"runs": _runs(bucket, cluster=str(request["cluster"]), cluster_id=str(request["id"]))}
        originals = [Original(**each) for each in request["objects"]]
        if request["op"] == "lacks":
            replicas.make_folder()
            # This node's own may be newer.
            return {"lacks": [index for index, each in enumerate(originals) if replicas.is_behind(each)]}
        if request["op"] == "keep":
            for each in originals:
                replicas.keep(each)
            return {"ok": True}
    except (KeyError, TypeError, ValueError) as error:
        why = f"bucket: the request cannot be used: {error!r}"
        raise UsageError(why, hint="the image and hvdcloud must be the same version: hvdcloud build") from error
    raise UsageError(f"bucket: {request['op']!r} is no request", hint="hvdcloud build")


def _runs(bucket: FolderBucket, *, cluster: str, cluster_id: str) -> dict[str, Any]:
    """What describes each run of the cluster incarnation: by the name in `.hvdcloud/`, generation and size."""
    found: dict[str, Any] = {}
    for run in list_runs(bucket, cluster, suffix=cluster_id):
        folder = f"{run_prefix(cluster, run)}{FOLDER}/"
        found[run] = {info.name.removeprefix(folder): [info.generation, info.size] for info in bucket.list(folder)}
    return found
