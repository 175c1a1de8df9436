"""A node's own folder bucket, over the pinned connection: the laptop's side of `hvdcloud-node bucket`.

The node is not trusted: names are made here, never taken from it, and no answer is longer than what was asked for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.remote.ssh import CHUNK, MOST_ANSWER, MOST_ERRORS, NODE_PROGRAM, Answer, Session, exit_code, has_ended
from hvdcloud.storage.base import disk_error
from hvdcloud.storage.replica import Original
from hvdcloud.visible import words

if TYPE_CHECKING:
    from pathlib import Path

    from paramiko import Channel

SILENT_SECONDS = 600.0
"""How long a node may take for an answer: what was put there is flushed to its disk."""
AT_ONCE = 32
"""Requests on their way to a node while it answers the first of them."""
_LINE_BYTES = 1 << 16
_GENERATIONS = 1 << 63

Described = Mapping[str, Mapping[str, tuple[int, int]]]
"""Generation and size, by run and by the name of what describes it."""


@contextlib.contextmanager
def open_bucket_of(session: Session) -> Iterator[NodeBucket]:
    """The bucket of a node for the block.

    Raises:
        NodeError: the node does not answer, the connection is lost, or the node refuses; also later, in the block.
    """
    session.open(within=SILENT_SECONDS)
    with session.channel(f"{NODE_PROGRAM} bucket") as channel:
        channel.settimeout(SILENT_SECONDS)
        yield NodeBucket(session, channel)


class NodeBucket:
    """Requests to one node, in order. After an error the connection is of no more use."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self._session = session
        self._channel = channel
        self._rest = bytearray()
        self._errors = bytearray()

    def look(self, cluster: str, cluster_id: str) -> Described:
        """What describes each run of this cluster incarnation. What is not in the form that is expected is left out."""
        self._ask({"op": "look", "cluster": cluster, "id": cluster_id})
        runs = self._answer(most=MOST_ANSWER).get("runs")
        return {
            str(run): {
                str(name): (int(pair[0]), int(pair[1])) for name, pair in found.items() if _is_generation_and_size(pair)
            }
            for run, found in (runs.items() if isinstance(runs, dict) else ())
            if isinstance(found, dict)
        }

    def get(self, wanted: Sequence[tuple[Original, int]]) -> Iterator[tuple[Original, Iterator[bytes] | None]]:
        """Each object's bytes from the given one on, to be read before the next; None: it is not there any more.

        Raises NodeError: the node sends another number of bytes than it should.
        """
        for first in range(0, len(wanted), AT_ONCE):
            batch = wanted[first : first + AT_ONCE]
            for original, start in batch:
                self._ask({"op": "get", "name": original.name, "generation": original.generation, "start": start})
            for original, start in batch:
                answer = self._answer()
                if answer.get("missing"):
                    yield original, None
                    continue
                if answer.get("size") != original.size - start:
                    raise self._wrong(f"sends {words(answer.get('size'))} bytes of {words(original.name)}")
                pieces = self._pieces(original.size - start)
                yield original, pieces
                for _ in pieces:
                    pass

    def lacking(self, originals: Sequence[Original]) -> list[Original]:
        """The originals that the node does not have, or has only as they were earlier."""
        found: list[Original] = []
        for first in range(0, len(originals), AT_ONCE):
            batch = originals[first : first + AT_ONCE]
            self._ask({"op": "lacks", "objects": [each.to_json() for each in batch]})
            lacks = self._answer().get("lacks")
            if not isinstance(lacks, list) or not all(type(each) is int and 0 <= each < len(batch) for each in lacks):
                raise self._wrong("does not say which objects it lacks")
            found += [batch[index] for index in sorted(set(lacks))]
        return found

    def put(self, original: Original, file: Path, *, on_bytes: Callable[[int], object]) -> None:
        """Give the node an object. Raises CheckpointError: the file cannot be read; NodeError: the node refused it."""
        self._ask({"op": "put", "object": original.to_json()})
        left = original.size
        try:
            source = file.open("rb")
        except OSError as error:
            raise disk_error(error, path=file, doing="reading") from error
        with source:
            while left:
                try:
                    data = source.read(min(CHUNK, left))
                except OSError as error:
                    raise disk_error(error, path=file, doing="reading") from error
                if not data:
                    raise CheckpointError(f"{file} became shorter while it was sent", hint="hvdcloud run again")
                self._channel.sendall(data)
                on_bytes(len(data))
                left -= len(data)
        if self._answer().get("ok") is not True:
            raise self._wrong(f"does not say that it has {words(original.name)}")

    def _ask(self, request: Mapping[str, Any]) -> None:
        self._channel.sendall(json.dumps(request).encode() + b"\n")

    def _answer(self, *, most: int = _LINE_BYTES) -> dict[str, Any]:
        while b"\n" not in self._rest:
            if len(self._rest) > most:
                raise self._wrong("answers with a line that is too long")
            self._rest += self._more()
        line, _, rest = bytes(self._rest).partition(b"\n")
        self._rest = bytearray(rest)
        # An error is a line as well, after which it has ended.
        found = self._session.parse("bucket", Answer(exit_code=0, stdout=line, stderr=b""))
        if not line or parse_object(line) is None:
            raise self._wrong("does not answer")
        return found

    def _pieces(self, count: int) -> Iterator[bytes]:
        """This many bytes of an object. What goes wrong with the connection is a NodeError, never one of a disk."""
        while count:
            piece = bytes(self._rest[:count]) if self._rest else self._more()
            if self._rest:
                del self._rest[: len(piece)]
            else:
                self._rest += piece[count:]
                piece = piece[:count]
            count -= len(piece)
            yield piece

    def _more(self) -> bytes:
        import paramiko

        deadline = time.monotonic() + SILENT_SECONDS
        try:
            while not self._channel.recv_ready():
                if self._channel.recv_stderr_ready():
                    self._errors += self._channel.recv_stderr(CHUNK)
                    del self._errors[:-MOST_ERRORS]
                elif has_ended(self._channel):
                    return self._ended()
                else:
                    self._session.wait_readable(self._channel, deadline=deadline, what="bucket")
            return bytes(self._channel.recv(CHUNK))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise NodeError(
                f"the connection to node {self._session.node.name} was lost: {words(error) or type(error).__name__}",
                hint="hvdcloud pull continues where this ended",
            ) from error

    def _ended(self) -> bytes:
        answer = Answer(exit_code=exit_code(self._channel), stdout=bytes(self._rest), stderr=bytes(self._errors))
        self._session.parse("bucket", answer)
        raise EOFError("it ended too early")

    def _wrong(self, what: str) -> NodeError:
        node = self._session.node
        return NodeError(f"node {node.name} {what}", hint=f"hvdcloud ssh {node.index} opens a shell there")


def _is_generation_and_size(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(each) is int and 0 <= each < _GENERATIONS for each in pair)
    )
