"""`check-machine`: what this node's processor, disk, bucket and GPUs do by themselves."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.node import machine, paths
from hvdcloud.node.check import gpus
from hvdcloud.node.monitor.sample import parse_memory
from hvdcloud.node.records.secrets_file import as_json
from hvdcloud.node.run.prepare import refuse_while_active

CPU_SECONDS = 2.0
DISK_SECONDS = 5.0
DISK_BYTES = 256 << 20
DISK_SPARE = 1 << 30
"""Bytes that stay free beside what is written."""
BUCKET_BYTES = 16 << 20
BUCKET_TIMES = 3
"""The fastest counts."""
BUCKET_SECONDS = 60.0
SECONDS = 150.0
"""How long the answer may take."""
_BLOCK = 1 << 20


def main(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure this node.

    Args:
        request: `bucket`, `bucket_endpoint`: as nodes see it; `object`: the name of what is written there;
            `credentials`: for it, as a run's request carries them; `cpu_seconds`: for how long the processor is
            measured, else CPU_SECONDS.

    Raises:
        UsageError: the request cannot be used.
        ActiveRunError: a run is active.
    """
    try:
        url, endpoint, name = str(request["bucket"]), request.get("bucket_endpoint"), str(request["object"])
        credentials, cpu_seconds = request.get("credentials"), float(request.get("cpu_seconds", CPU_SECONDS))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"check: {type(error).__name__}: {error}", hint="hvdcloud check again") from error
    refuse_while_active()
    try:
        memory = parse_memory(Path("/proc/meminfo").read_text())
    except OSError:
        memory = None  # A container without it: its memory is not compared.
    return {
        "cores": machine.cores(),
        "memory": memory[1] if memory else None,
        **gpus.health(),
        "cpu": processor(machine.cores(), seconds=cpu_seconds),
        "disk": disk_speed(paths.state_dir()),
        "bucket": _bucket_speed(url, endpoint=endpoint, name=name, credentials=credentials),
    }


def processor(cores: int, *, seconds: float = CPU_SECONDS) -> dict[str, Any]:
    """What the processor does while a thread for each core hashes; Python does that outside its lock.

    Returns:
        `speed`: bytes a second of SHA-256 of all cores, if they had nothing else to do: by the threads' own time, so
        that other programs on the machine do not count. `share`: the part of the cores' time that the threads got, 0 to
        1. `limit`: cores that the control group grants, where it sets a limit. `stolen`: the part of the time that the
        machine under the VM took for others (`steal` in proc_stat(5)).
    """
    block = bytes(_BLOCK)
    began, before = time.monotonic(), _stolen()

    def work(_: int) -> tuple[int, float]:
        count, own = 0, time.thread_time()
        while time.monotonic() < began + seconds:
            hashlib.sha256(block).digest()
            count += 1
        return count, time.thread_time() - own

    with ThreadPoolExecutor(max_workers=cores) as pool:
        done = list(pool.map(work, range(cores)))
    hashed, worked = sum(count for count, _ in done) * _BLOCK, sum(own for _, own in done)
    after, limit = _stolen(), machine.core_limit()
    ticks = after[1] - before[1]
    return {
        "speed": round(cores * hashed / worked) if worked else None,
        "share": round(min(1.0, worked / (cores * (time.monotonic() - began))), 4),
        "stolen": round((after[0] - before[0]) / ticks, 4) if ticks > 0 else None,
        **({"limit": round(limit, 3)} if limit is not None else {}),
    }


def _stolen() -> tuple[float, float]:
    """The kernel's ticks that were stolen, and all of them."""
    try:
        fields = [float(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    except OSError:
        fields = []  # A container without it.
    return (fields[7], sum(fields)) if len(fields) > 7 else (0.0, 0.0)


def disk_speed(folder: Path, *, most: int = DISK_BYTES) -> dict[str, Any]:
    """`write`: bytes a second that reach the disk, from a file without a name, which no end of this process leaves."""
    status = os.statvfs(folder)
    if status.f_bavail * status.f_frsize < most + DISK_SPARE:
        return {"error": f"less than {(most + DISK_SPARE) / 1e9:.1f} GB are free"}
    block = os.urandom(4 * _BLOCK)
    written, began = 0, time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while written < most and time.monotonic() - began < DISK_SECONDS:
                written += file.write(block)
            os.fsync(file.fileno())
    except OSError as error:
        return {"error": f"writing failed: {error.strerror or error}"}
    return {"write": round(written / (time.monotonic() - began))}


def _bucket_speed(url: str, *, endpoint: str | None, name: str, credentials: str | None) -> dict[str, Any]:
    """As `bucket_speed`, but with a limit to its time: a network that drops everything is no reason to wait."""
    found: dict[str, Any] = {"error": f"it did not answer within {BUCKET_SECONDS:.0f} s"}

    def work() -> None:
        try:
            found.update(bucket_speed(url, endpoint=endpoint, name=name, credentials=credentials), error="")
        except HvdcloudError as error:
            found["error"] = error.message
        except OSError as error:
            found["error"] = f"{error.strerror or error}"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(BUCKET_SECONDS)
    return {key: value for key, value in found.items() if key != "error" or value}


def bucket_speed(url: str, *, endpoint: str | None, name: str, credentials: str | None) -> dict[str, Any]:
    """`up` and `down`: bytes a second of one object, which is left empty: nothing of ours deletes in a bucket.

    Raises HvdcloudError: the bucket cannot be used.
    """
    # Google's client takes long to import, which only a check of a bucket waits for.
    from hvdcloud.storage.open import open_bucket

    with tempfile.TemporaryDirectory(dir=paths.volatile_dir()) as folder:
        file = None
        if credentials:
            file = Path(folder) / "credentials.json"
            file.touch(mode=0o600)
            file.write_text(as_json(credentials))
        bucket = open_bucket(url, endpoint=endpoint, credentials_file=file, retry_seconds=BUCKET_SECONDS / 3)
        data = os.urandom(BUCKET_BYTES)
        up, down = [], []
        for _ in range(BUCKET_TIMES):
            began = time.monotonic()
            bucket.write(name, data)
            sent = time.monotonic()
            if bucket.read(name) != data:
                raise UsageError(f"{name} came back as other bytes than were sent", hint="hvdcloud doctor")
            up.append(BUCKET_BYTES / (sent - began))
            down.append(BUCKET_BYTES / (time.monotonic() - sent))
        bucket.write(name, b"")
    return {"up": round(max(up)), "down": round(max(down))}
