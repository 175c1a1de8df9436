"""`bucket` and `send`: what the laptop asks of the bucket that this node has for itself.

Where nodes and laptop share no storage, each node's checkpoints go to a folder bucket of its own. The laptop brings its
objects home (hvdcloud/remote/mirror.py), and gives a node those of earlier runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from hvdcloud.checkpoints.manifest import descriptions, list_runs, manifest_name
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import paths
from hvdcloud.storage.base import PIECE, ObjectInfo, ObjectMissingError
from hvdcloud.storage.folder import FolderBucket


def keep(request: Mapping[str, Any], source: IO[bytes]) -> dict[str, Any]:
    """`bucket`: which of the request's objects this node lacks; or, where it says `keep`, take them all from `source`.

    Raises:
        UsageError: the request cannot be used.
        CheckpointError: what came is not what was promised, or cannot be stored.
    """
    bucket = FolderBucket(paths.bucket_dir())
    try:
        originals = [ObjectInfo(**each) for each in request["objects"]]
        if request.get("keep"):
            for each in originals:
                bucket.receive(each, _pieces(source, size=each.size))
            return {"ok": True}
        present = [bucket.present(each.name) for each in originals]
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(error) from error
    # This node's own may be newer.
    lacks = [found is None or found[1] < each.generation for each, found in zip(originals, present, strict=True)]
    return {"lacks": [number for number, lacking in enumerate(lacks) if lacking]}


def send(request: Mapping[str, Any], source: IO[bytes], output: IO[bytes]) -> int:
    """`send`: say what this node has of the runs of a cluster incarnation, then write what the laptop asks for; returns
    the exit code.

    The first line is `objects`: size and generation, by name. Each line that comes has [name, generation] of objects,
    null for any generation; each is answered by a line with its size and generation, and its bytes, or by {}: it is no
    longer there.

    Args:
        request: `cluster`, `id`, `node`.

    Raises:
        UsageError: the request, or what is asked for, cannot be used.
        NodeError: an object became shorter.
    """
    bucket = FolderBucket(paths.bucket_dir())
    try:
        cluster, node = str(request["cluster"]), int(request["node"])
        present = {
            name: bucket.present(name)
            for run in list_runs(bucket, cluster, suffix=str(request["id"]))
            for name in (manifest_name(cluster, run, node), *descriptions(cluster, run, node))
        }
        _say({"objects": {name: found for name, found in present.items() if found is not None}}, output)
        output.flush()
        while line := source.readline():
            for name, generation in json.loads(line):
                _write(bucket, name, generation, output)
            output.flush()
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(error) from error
    return 0


def _write(bucket: FolderBucket, name: str, generation: int | None, output: IO[bytes]) -> None:
    try:
        descriptor = bucket.descriptor(name, generation=generation)
    except ObjectMissingError:
        _say({}, output)
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _say({"size": status.st_size, "generation": status.st_mtime_ns}, output)
        left = status.st_size
        for piece in _pieces(file, size=left):
            output.write(piece)
            left -= len(piece)
    if left:
        raise NodeError(f"{name} became shorter while it was sent", hint="hvdcloud pull")


def _say(answer: Mapping[str, Any], output: IO[bytes]) -> None:
    output.write(json.dumps(answer).encode() + b"\n")


def _pieces(source: IO[bytes], *, size: int) -> Iterator[bytes]:
    """So many bytes, or fewer where there are no more."""
    while size and (data := source.read(min(PIECE, size))):
        size -= len(data)
        yield data


def _unusable(error: Exception) -> UsageError:
    why = f"bucket: the request cannot be used: {error!r}"
    return UsageError(why, hint="the image and hvdcloud must be the same version: hvdcloud build")
