"""A run's log, events and state beside its checkpoints, so that they outlive the nodes: `CLUSTER/RUN/.hvdcloud/log`."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import NodeError
from hvdcloud.node import machine, paths
from hvdcloud.node.files import write_json
from hvdcloud.node.records import state
from hvdcloud.node.records.secrets_file import METADATA
from hvdcloud.node.records.spec import Spec
from hvdcloud.storage.threads import Outcome, attempt

if TYPE_CHECKING:
    from hvdcloud.storage.base import Bucket

KEEP_SECONDS = 120.0
_POLL_SECONDS = 0.05


def keep(run: str) -> None:
    """Put what there is of the log, and the state, into the run's bucket. Raises HvdcloudError, OSError: it failed."""
    kept: list[Outcome[str, None]] = []
    # A bucket that does not answer must not keep nodes that cost money.
    thread = threading.Thread(target=lambda: kept.append(attempt(run, _keep)), name="log", daemon=True)
    thread.start()
    thread.join(KEEP_SECONDS)
    with contextlib.suppress(OSError):
        _done_file(run).touch()
    if thread.is_alive():
        raise NodeError(f"the bucket did not take it within {KEEP_SECONDS:.0f} s", hint="hvdcloud logs reads the rest")
    if kept and kept[0].error is not None:
        raise kept[0].error


def wait_kept(run: str, *, seconds: float) -> None:
    """Wait until the log of a run that has ended was kept, or could not be: before its node goes."""
    deadline = time.monotonic() + seconds
    while not _done_file(run).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _done_file(run: str) -> Path:
    return paths.run_dir(run) / "log-kept"


def _keep(run: str) -> None:
    from hvdcloud.checkpoints.manifest import events_name, log_name, stacks_name, state_name
    from hvdcloud.storage.checksum import crc32c_of_file

    spec = Spec.load(run)
    bucket = open_bucket_of(spec)
    if bucket is None:
        return
    log = state.log_file(run)
    _, crc32c = crc32c_of_file(log)
    bucket.upload(log, log_name(spec.cluster, run), crc32c=crc32c)
    if (happened := state.events_file(run)).exists():
        bucket.write(events_name(spec.cluster, run), happened.read_bytes())
    if (stacks := state.stacks_file(run)).exists():
        bucket.write(stacks_name(spec.cluster, run), stacks.read_bytes())
    bucket.write(state_name(spec.cluster, run), json.dumps(state.read(run).to_json()).encode())


def open_bucket_of(spec: Spec, *, retry_seconds: float | None = None) -> Bucket | None:
    """The bucket of a run that has ended, as long as this node can write to it; None: it no longer can.

    Args:
        retry_seconds: how long each request is retried; None: as usual.

    Raises:
        HvdcloudError, OSError: it cannot be opened.
    """
    from hvdcloud.storage.base import RETRY_SECONDS
    from hvdcloud.storage.open import open_bucket

    if spec.bucket.startswith("gs://") and not spec.bucket_endpoint and not machine.facts().get("metadata"):
        # Containers on the user's machine: the credentials that were lent to them are gone, and the nodes stay.
        return None
    seconds = RETRY_SECONDS if retry_seconds is None else retry_seconds
    credentials = _credentials(spec.run)
    return open_bucket(spec.bucket, endpoint=spec.bucket_endpoint, credentials_file=credentials, retry_seconds=seconds)


def _credentials(run: str) -> Path | None:
    """Those of the VM, which need no secret."""
    if not machine.facts().get("metadata"):
        return None
    file = paths.run_dir(run) / "keeplog.json"
    write_json(file, {"type": METADATA}, mode=0o600)
    return file
