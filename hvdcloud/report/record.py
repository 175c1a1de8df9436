"""All that the bucket knows of one run. Whoever can write to the bucket could have written it: it is not trusted."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdcloud.checkpoints.manifest import Entry
    from hvdcloud.storage.base import Bucket

_GREATEST = 1e15
_END_OF_TIME = 250_000_000_000.0
_SAMPLES = re.compile(r"samples-(0|[1-9][0-9]{0,5})\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run."""

    cluster: str
    run: str
    bucket: str
    """Its URL."""
    state: Mapping[str, Any]
    """As the head left it when the run had ended; empty: it has not ended, or its head was lost."""
    log: bytes
    samples: Mapping[int, Sequence[Mapping[str, Any]]]
    """By node, oldest first."""
    events: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Entry]
    complete: bool
    """Every node that has said anything has said that all of its files are there."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What the laptop knew of the cluster when it started the run."""
        found = self.state.get("about")
        return found if isinstance(found, dict) else {}

    @property
    def started(self) -> float | None:
        """Seconds since the epoch; where the state is missing, the first sign of life."""
        times = [sample["t"] for samples in self.samples.values() for sample in samples[:1]]
        return instant(self.state.get("started")) or min(times, default=None)

    @property
    def ended(self) -> float | None:
        """Seconds since the epoch; None: not known."""
        return instant(self.state.get("ended"))

    @property
    def last_seen(self) -> float | None:
        """The end, or the last sign of life."""
        times = [sample["t"] for samples in self.samples.values() for sample in samples[-1:]]
        return self.ended or max([*times, *([self.started] if self.started else [])], default=None)

    def node_name(self, index: int) -> str:
        """`digits-0`."""
        names = self.state.get("nodes")
        if isinstance(names, list) and index < len(names):
            return str(names[index])
        return f"{self.cluster}-{index}"


def number(value: object) -> float | None:
    """A number of a size that there is, or None for whatever else stands in its place."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _GREATEST else None


def instant(value: object) -> float | None:
    """Seconds since the epoch that a calendar knows, or None."""
    found = number(value)
    return found if found is not None and 0 <= found < _END_OF_TIME else None


def read_record(bucket: Bucket, *, cluster: str, run: str) -> RunRecord:
    """Everything of a run that is in the bucket.

    Raises:
        CheckpointError: a manifest is not valid, or the bucket cannot be reached.
    """
    from hvdcloud.checkpoints.manifest import FOLDER, events_name, load_manifests, log_name, run_prefix, state_name

    manifests = load_manifests(bucket, cluster=cluster, run=run)
    folder = f"{run_prefix(cluster, run)}{FOLDER}/"
    samples = {}
    for info in bucket.list(f"{folder}samples-"):
        if match := _SAMPLES.fullmatch(info.name.removeprefix(folder)):
            rows = [row for row in _rows(_read(bucket, info.name)) if instant(row.get("t")) is not None]
            samples[int(match[1])] = sorted(rows, key=lambda row: float(row["t"]))
    return RunRecord(
        cluster=cluster,
        run=run,
        bucket=bucket.url,
        state=_object(_read(bucket, state_name(cluster, run))),
        log=_read(bucket, log_name(cluster, run)),
        samples=dict(sorted(samples.items())),
        events=[row for row in _rows(_read(bucket, events_name(cluster, run))) if instant(row.get("t")) is not None],
        checkpoints=sorted((entry for each in manifests for entry in each.files), key=lambda entry: entry.modified),
        complete=bool(manifests) and all(each.complete for each in manifests),
    )


def _read(bucket: Bucket, name: str) -> bytes:
    from hvdcloud.storage.base import ObjectMissingError

    try:
        return bucket.read(name)
    except ObjectMissingError:
        return b""


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _rows(data: bytes) -> list[dict[str, Any]]:
    """One object a line; a line that was cut off, or is none, is left out."""
    rows = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                rows.append(value)
    return rows
