"""`bucket`: the bucket that this node has for itself, served over standard input and output.

Where nodes and laptop share no storage, each node's checkpoints go to a folder bucket of its own, and the laptop brings
its objects home over the pinned connection (hvdcloud/remote/mirror.py), and puts those of earlier runs here. A request
is one line of JSON, and so is its answer; bytes follow the answer of `get`, and the request of `put`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from hvdcloud.checkpoints.manifest import FOLDER, list_runs, run_prefix
from hvdcloud.errors import CheckpointError, UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node import paths
from hvdcloud.storage.base import ObjectMissingError
from hvdcloud.storage.checksum import CHUNK
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.replica import Original, Replicas

_HINT = "the image and hvdcloud must be the same version: hvdcloud build"


def main(source: IO[bytes], answer: IO[bytes]) -> dict[str, Any]:
    """Answer requests until there are no more. Returns the closing line.

    Raises:
        UsageError: a line is not a request.
        CapacityError, CheckpointError: what was put cannot be stored; the connection is of no more use then.
    """
    server = _Server(FolderBucket(paths.bucket_dir()), source, answer)
    while line := source.readline():
        server.answer(parse_object(line))
    return {"ok": True}


class _Server:
    def __init__(self, bucket: FolderBucket, source: IO[bytes], answer: IO[bytes]) -> None:
        self._bucket = bucket
        self._replicas = Replicas(bucket, key="received")
        self._source = source
        self._answer = answer

    def answer(self, request: dict[str, Any] | None) -> None:
        operations = {"look": self._look, "get": self._get, "lacks": self._lacks, "put": self._put}
        operation = operations.get(str(request.get("op"))) if request is not None else None
        if request is None or operation is None:
            raise UsageError("bucket: a line is not a request", hint=_HINT)
        try:
            operation(request)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"bucket: the request cannot be used: {error!r}", hint=_HINT) from error

    def _say(self, answer: Mapping[str, Any]) -> None:
        self._answer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        self._answer.flush()

    def _look(self, request: Mapping[str, Any]) -> None:
        """What describes each run of the cluster incarnation: by the name in `.hvdcloud/`, generation and size."""
        cluster, found = str(request["cluster"]), {}
        for run in list_runs(self._bucket, cluster, suffix=str(request["id"])):
            folder = f"{run_prefix(cluster, run)}{FOLDER}/"
            found[run] = {
                info.name.removeprefix(folder): [info.generation, info.size] for info in self._bucket.list(folder)
            }
        self._say({"runs": found})

    def _get(self, request: Mapping[str, Any]) -> None:
        start = int(request.get("start", 0))
        try:
            descriptor = self._bucket.descriptor(str(request["name"]), generation=int(request["generation"]))
        except ObjectMissingError:
            self._say({"missing": True})
            return
        with os.fdopen(descriptor, "rb") as file:
            left = max(0, os.fstat(descriptor).st_size - start)
            self._say({"size": left})
            file.seek(start)
            while left and (data := file.read(min(CHUNK, left))):
                self._answer.write(data)
                left -= len(data)
            self._answer.flush()
        if left:
            raise CheckpointError(f"{request['name']} became shorter while it was read", hint="hvdcloud pull")

    def _lacks(self, request: Mapping[str, Any]) -> None:
        """The indices of those objects that are not here; this node's own may be newer."""
        originals = [Original.from_json(each) for each in request["objects"]]
        self._say({"lacks": [index for index, each in enumerate(originals) if self._replicas.is_behind(each)]})

    def _put(self, request: Mapping[str, Any]) -> None:
        original = Original.from_json(request["object"])
        self._replicas.receive(original, _pieces(self._source, original.size))
        self._say({"ok": True})


def _pieces(source: IO[bytes], size: int) -> Iterator[bytes]:
    """Exactly this many bytes. Raises CheckpointError: there are not as many."""
    left = size
    while left:
        data = source.read(min(CHUNK, left))
        if not data:
            raise CheckpointError("the connection ended in the middle of an object", hint="hvdcloud run again")
        left -= len(data)
        yield data
