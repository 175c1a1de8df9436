"""`bucket` and `send`: what the laptop asks of the bucket that this node has for itself.

Where nodes and laptop share no storage, each node's checkpoints go to a folder bucket of its own. The laptop brings its
objects home (hvdcloud/remote/mirror.py), and gives a node those of earlier runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from hvdcloud.checkpoints.manifest import list_runs, manifest_name
from hvdcloud.checkpoints.mirror import descriptions
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import paths
from hvdcloud.storage.base import ObjectMissingError
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.replica import Original, Replicas

_PIECE = 1 << 20


def keep(request: Mapping[str, Any], source: IO[bytes]) -> dict[str, Any]:
    """`bucket`: which of the request's objects this node lacks; or, where it says `keep`, take them all from `source`.

    Raises:
        UsageError: the request cannot be used.
        CheckpointError: what came is not what was promised, or cannot be stored.
    """
    replicas = Replicas(FolderBucket(paths.bucket_dir()), key="received")
    try:
        originals = [Original(**each) for each in request["objects"]]
        if not request.get("keep"):
            # This node's own may be newer.
            return {"lacks": [number for number, each in enumerate(originals) if replicas.is_behind(each)]}
        for each in originals:
            replicas.receive(each, _pieces(source, size=each.size))
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(error) from error
    return {"ok": True}


def send(request: Mapping[str, Any], source: IO[bytes], output: IO[bytes]) -> int:
    """`send`: write what the laptop lacks of each run of a cluster incarnation; returns the exit code.

    Each object follows a line of JSON with its name, size and generation: a manifest first, then those objects whose
    names and generations the laptop answers, in a line of JSON, and then what describes the run. What was replaced
    meanwhile is left out.

    Args:
        request: `cluster`, `id`, `node`, and what the laptop has: size and generation, by name.

    Raises:
        UsageError: the request, or an answer, cannot be used.
        NodeError: an object became shorter.
    """
    bucket = FolderBucket(paths.bucket_dir())
    try:
        cluster, node, have = str(request["cluster"]), int(request["node"]), dict(request["have"])
        for run in list_runs(bucket, cluster, suffix=str(request["id"])):
            name = manifest_name(cluster, run, node)
            if _write(bucket, name, output, have=have.get(name)):
                output.flush()
                for name, generation in json.loads(source.readline()):
                    _write(bucket, name, output, generation=generation)
            for name in descriptions(cluster, run, node):
                _write(bucket, name, output, have=have.get(name))
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(error) from error
    output.flush()
    return 0


def _write(
    bucket: FolderBucket, name: str, output: IO[bytes], *, have: object = None, generation: int | None = None
) -> bool:
    """Returns whether there is such an object, and the laptop does not have it."""
    try:
        descriptor = bucket.descriptor(name, generation=generation)
    except ObjectMissingError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        size, generation = status.st_size, status.st_mtime_ns
        if have == [size, generation]:
            return False
        output.write(json.dumps({"name": name, "size": size, "generation": generation}).encode() + b"\n")
        left = size
        for piece in _pieces(file, size=size):
            output.write(piece)
            left -= len(piece)
    if left:
        raise NodeError(f"{name} became shorter while it was sent", hint="hvdcloud pull")
    return True


def _pieces(source: IO[bytes], *, size: int) -> Iterator[bytes]:
    """So many bytes, or fewer where there are no more."""
    while size and (data := source.read(min(_PIECE, size))):
        size -= len(data)
        yield data


def _unusable(error: Exception) -> UsageError:
    why = f"bucket: the request cannot be used: {error!r}"
    return UsageError(why, hint="the image and hvdcloud must be the same version: hvdcloud build")
