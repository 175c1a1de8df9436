"""All that the bucket knows of one run. It is not trusted: anyone with write access could have written it."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.checkpoints.manifest import FOLDER, events_name, load_each, log_name, run_prefix, state_name
from hvdcloud.json_values import parse_object
from hvdcloud.runs.archive import MOST_LOG
from hvdcloud.runs.reports import instant, json_lines
from hvdcloud.runs.spec import About
from hvdcloud.runs.state import Event, RunState, read_sample
from hvdcloud.storage.base import MOST_READ, PIECE, ObjectMissingError, TooLargeError

if TYPE_CHECKING:
    from hvdcloud.checkpoints.manifest import Entry
    from hvdcloud.storage.base import Bucket

_MOST_SAMPLES = 64 << 20
"""Bytes of all nodes' samples together."""
_SAMPLES = re.compile(r"samples-(0|[1-9][0-9]{0,5})\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run."""

    cluster: str
    run: str
    bucket: str
    """Its URL."""
    state: RunState
    """As the head left it when the run had ended; empty: it has not ended, or its head was lost."""
    log: Iterable[bytes]
    """Piece by piece, of any size; it is read once."""
    samples: Mapping[int, Sequence[Mapping[str, Any]]]
    """By node, oldest first."""
    events: Sequence[Event]
    checkpoints: Sequence[Entry]
    complete: bool
    """Every node that has said anything has said that all of its files are in the bucket."""
    unread: Sequence[str] = ()
    """Sentences: objects of it that cannot be used, and why."""

    @property
    def about(self) -> About:
        """What the laptop knew of the cluster when it started the run."""
        return self.state.about

    @property
    def started(self) -> float | None:
        """Seconds since the epoch; where the state is missing, the first sign of life."""
        times = [sample["t"] for samples in self.samples.values() for sample in samples[:1]]
        return self.state.started or min(times, default=None)

    @property
    def last_seen(self) -> float | None:
        """The end, or the last sign of life."""
        times = [sample["t"] for samples in self.samples.values() for sample in samples[-1:]]
        return self.state.ended or max([*times, *([self.started] if self.started else [])], default=None)

    @property
    def changes_world(self) -> bool:
        """Whether ranks may have moved between nodes; where the state is missing, the events tell."""
        return self.state.elastic is not None or any(event.name == "world" for event in self.events)

    def node_name(self, index: int) -> str:
        """`digits-0`."""
        return self.state.nodes[index] if index < len(self.state.nodes) else f"{self.cluster}-{index}"


def read_record(bucket: Bucket, *, cluster: str, run: str) -> RunRecord:
    """Everything of a run that is in the bucket.

    Raises:
        CheckpointError: the bucket cannot be reached.
    """
    manifests, bad = load_each(bucket, cluster=cluster, run=run)
    folder = f"{run_prefix(cluster, run)}{FOLDER}/"
    samples, unread, left = {}, [], _MOST_SAMPLES

    def read(name: str, most: int = MOST_READ) -> bytes:
        try:
            return bucket.read(name, most=most)
        except ObjectMissingError:
            return b""
        except TooLargeError as error:
            unread.append(error.message)
            return b""

    for info in bucket.list(f"{folder}samples-"):
        if match := _SAMPLES.fullmatch(info.name.removeprefix(folder)):
            data = read(info.name, min(left, MOST_READ))
            left -= len(data)
            rows = [read_sample(row) for row in json_lines(data) if instant(row.get("t")) is not None]
            samples[int(match[1])] = sorted(rows, key=lambda row: float(row["t"]))
    return RunRecord(
        cluster=cluster,
        run=run,
        bucket=bucket.url,
        state=RunState.from_json(parse_object(read(state_name(cluster, run)))),
        log=_pieces(bucket, log_name(cluster, run)),
        samples=dict(sorted(samples.items())),
        events=Event.all_from_json(json_lines(read(events_name(cluster, run)))),
        checkpoints=sorted((entry for each in manifests for entry in each.files), key=lambda entry: entry.modified),
        complete=bool(manifests) and not bad and all(each.complete for each in manifests),
        unread=[*unread, *(each.error.message for each in bad)],
    )


def _pieces(bucket: Bucket, name: str) -> Iterator[bytes]:
    with contextlib.suppress(ObjectMissingError):
        # Not to an end that its writer moves on and on.
        yield from itertools.islice(bucket.pieces(name), MOST_LOG // PIECE)
