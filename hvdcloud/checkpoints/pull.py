"""From the bucket to this disk: every file of a run, verified, under `TARGET/RUN/`.

Pulling again continues where the last pull ended, however it ended: files that are right are not fetched again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdcloud.checkpoints.fetch import fetch, local_paths, remove_partials
from hvdcloud.checkpoints.manifest import RUN_ID, BadManifest, Entry, Manifest, load_each, run_prefix
from hvdcloud.checkpoints.names import clashes, is_checkpoint, refusals
from hvdcloud.checkpoints.verified_files import Verified, VerifiedFiles, has_bytes_of
from hvdcloud.errors import CapacityError, CheckpointError
from hvdcloud.storage.base import (
    Bucket,
    BucketUnreachableError,
    CorruptObjectError,
    ObjectMissingError,
    disk_error,
    free_bytes,
    ignores_case,
    locked,
)

WORKERS = 8
# A running node replaces objects while we fetch: its manifest is read again this many times.
_ROUNDS = 4
# Seconds between two writes of the ledger; what a kill -9 loses is only verified again.
_LEDGER_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One file that is not on this disk, or a manifest that cannot be used, and why."""

    name: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """What a pull did."""

    run: str
    path: Path  # The folder, `TARGET/RUN`.
    files: int  # How many files are now on this disk, verified.
    others: int  # How many of them are neither models nor of the checkpoint directory.
    fetched: int  # How many of them this pull brought.
    bytes_fetched: int
    bytes_skipped: int
    complete: bool  # Every node has finished uploading, so there is nothing more to come.
    failed: Sequence[Failure] = ()  # Only in PullError.result; empty otherwise. Manifests come last.
    refused: Mapping[str, str] = field(default_factory=dict)  # Names that never become files, and why; no failures.


class PullError(CheckpointError):
    """Some files could not be brought; all others were. `result` says which."""

    def __init__(self, message: str, *, hint: str, details: str, result: PullResult) -> None:
        super().__init__(message, hint=hint, details=details)
        self.result = result


@dataclass(slots=True, kw_only=True)
class _Tally:
    files: int = 0
    others: int = 0
    fetched: int = 0
    bytes_fetched: int = 0
    bytes_skipped: int = 0
    failed: dict[str, Exception] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def count(self, entry: Entry) -> None:
        """One more file is on this disk."""
        self.files += 1
        self.others += not is_checkpoint(entry.name)


def pull(
    bucket: Bucket,
    *,
    cluster: str,
    run: str,
    target: Path,
    verified_files: VerifiedFiles,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
    workers: int = WORKERS,
) -> PullResult:
    """Bring a run's checkpoints to `target/run/`.

    Args:
        on_progress: takes how many bytes are here, also those that needed no fetching, and how many there will be.

    Raises:
        CheckpointError: no such run; a link leads out of the target; another pull writes there.
        PullError: files that are missing, damaged or could not be fetched, or nodes whose manifest cannot be used;
            every other file was fetched.
        CapacityError: not enough space, checked before anything is fetched.
    """
    if not RUN_ID.fullmatch(run):
        # It becomes a folder on this disk.
        raise CheckpointError(f"{run!r} is not the id of a run", hint=f"hvdcloud --name {cluster} pull")
    manifests, bad = load_each(bucket, cluster=cluster, run=run)
    if not (manifests or bad):
        raise CheckpointError(
            f"run {run} of {cluster} has no checkpoints in {bucket.url}", hint=f"hvdcloud --name {cluster} list"
        )
    root = target.absolute() / run
    if root.is_symlink():
        raise CheckpointError(
            f"{root} is a symbolic link, so {run} would be written to {os.path.realpath(root)}",
            hint="remove the link, or pull to another folder with --to",
        )
    if not manifests:
        raise _failure(bucket, _result(run, root, _Tally(), bad=bad, complete=False), bad)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, path=root, doing="making") from error
    with _only_one(root, run=run):
        remove_partials(root)
        try:
            for round_number in range(1, _ROUNDS + 1):
                tally = _bring(
                    bucket,
                    manifests,
                    cluster=cluster,
                    run=run,
                    root=root,
                    verified_files=verified_files,
                    on_progress=on_progress,
                    workers=workers,
                )
                replaced = any(isinstance(error, ObjectMissingError) for error in tally.failed.values())
                if not replaced or round_number == _ROUNDS:
                    break
                # So there is a newer manifest, if the node lives.
                again, bad_again = load_each(bucket, cluster=cluster, run=run)
                if again == manifests:
                    break
                manifests, bad = again, bad_again
        finally:
            verified_files.save()
    complete = not bad and all(manifest.complete for manifest in manifests)
    result = _result(run, root, tally, bad=bad, complete=complete)
    if result.failed:
        raise _failure(bucket, result, bad)
    return result


def _bring(
    bucket: Bucket,
    manifests: Sequence[Manifest],
    *,
    cluster: str,
    run: str,
    root: Path,
    verified_files: VerifiedFiles,
    on_progress: Callable[[int, int], object],
    workers: int,
) -> _Tally:
    """Fetch what these manifests list or announce, and is not here."""
    is_right = functools.partial(_is_right, verified_files=verified_files, cluster=cluster, run=run)
    fetch_all = functools.partial(fetch, bucket, prefix=run_prefix(cluster, run), workers=workers)
    wanted = {entry.name: entry for manifest in manifests for entry in manifest.files}
    announced = [entry for manifest in manifests for entry in manifest.uploading]
    tally = _Tally()
    names = [*wanted, *(entry.name for entry in announced)]
    tally.refused = refusals(names, present=functools.partial(_names_in, root))
    left_out = {**tally.refused, **clashes(names, ignores_case=ignores_case(root))}
    tally.failed |= {
        name: CheckpointError(f"{name} is not fetched: {why}", hint="rename one of the two")
        for name, why in left_out.items()
        if name not in tally.refused and name in wanted
    }
    wanted = {name: entry for name, entry in wanted.items() if name not in left_out}
    announced = [entry for entry in announced if entry.name not in left_out]
    places = local_paths(root, [*wanted, *(entry.name for entry in announced)])
    total = sum(entry.size for entry in wanted.values())

    def report() -> None:
        on_progress(tally.bytes_fetched + tally.bytes_skipped, total)

    report()
    missing: list[Entry] = []
    for entry in wanted.values():
        if is_right(places[entry.name], entry):
            tally.count(entry)
            tally.bytes_skipped += entry.size
        else:
            missing.append(entry)
    report()
    missing = _that_fit(bucket, missing, root=root, prefix=run_prefix(cluster, run), failed=tally.failed)
    saved = time.monotonic()

    def done(entry: Entry, path: Path, error: Exception | None) -> None:
        nonlocal saved
        if error is not None:
            tally.failed[entry.name] = error
            return
        _remember(verified_files, path, entry, cluster=cluster, run=run)
        tally.count(entry)
        tally.fetched += 1
        tally.bytes_fetched += entry.size
        if time.monotonic() - saved >= _LEDGER_EVERY:
            verified_files.save()
            saved = time.monotonic()
        report()

    def announced_done(entry: Entry, path: Path, error: Exception | None) -> None:
        # What does not have the announced bytes is still being uploaded, or was lost with its node: no failure.
        if error is None:
            tally.failed.pop(entry.name, None)
            done(entry, path, None)

    fetch_all([(entry, places[entry.name]) for entry in missing], on_done=done)
    if announced:
        # A node replaced or made these and has not listed them yet; if it died, it never will.
        unlisted = [entry for entry in announced if entry.name not in wanted or entry.name in tally.failed]
        right = [entry for entry in unlisted if is_right(places[entry.name], entry)]
        for entry in right:
            tally.failed.pop(entry.name, None)
            tally.count(entry)
            tally.bytes_skipped += entry.size
        rest = [(entry, places[entry.name]) for entry in unlisted if entry not in right]
        fetch_all(rest, on_done=announced_done)
    return tally


def _result(run: str, root: Path, tally: _Tally, *, bad: Sequence[BadManifest], complete: bool) -> PullResult:
    return PullResult(
        run=run,
        path=root,
        files=tally.files,
        others=tally.others,
        fetched=tally.fetched,
        bytes_fetched=tally.bytes_fetched,
        bytes_skipped=tally.bytes_skipped,
        complete=complete,
        failed=[
            *(Failure(name=name, error=error) for name, error in sorted(tally.failed.items())),
            *(Failure(name=each.name, error=each.error) for each in bad),
        ],
        refused=tally.refused,
    )


def _names_in(root: Path, folder: str) -> Sequence[str]:
    """What a folder of the run has on this disk, perhaps from an earlier pull."""
    try:
        return os.listdir(root / folder)
    except OSError:
        return ()


def _is_right(path: Path, entry: Entry, *, verified_files: VerifiedFiles, cluster: str, run: str) -> bool:
    """Whether this file is the one promised: by the ledger if nothing touched it since, else by its bytes."""
    try:
        status = path.lstat()
    except OSError:
        return False  # To fetch it says what this disk has against it.
    if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
        return False
    known = verified_files.get(cluster=cluster, run=run, name=entry.name)
    if known is not None and known.holds(entry) and (known.path, known.mtime_ns) == (str(path), status.st_mtime_ns):
        return True
    try:
        if not has_bytes_of(path, entry):
            return False
    except OSError:
        return False
    _remember(verified_files, path, entry, cluster=cluster, run=run)
    return True


def _remember(verified_files: VerifiedFiles, path: Path, entry: Entry, *, cluster: str, run: str) -> None:
    verified_files.add(
        Verified(
            cluster=cluster,
            run=run,
            name=entry.name,
            generation=entry.generation,
            crc32c=entry.crc32c,
            size=entry.size,
            path=str(path),
            mtime_ns=path.lstat().st_mtime_ns,
        )
    )


def _failure(bucket: Bucket, result: PullResult, bad: Sequence[BadManifest]) -> PullError:
    failed = result.failed[: len(result.failed) - len(bad)]
    nodes = ", ".join(str(each.node) for each in bad)
    whose = f"node{'s' if len(bad) > 1 else ''} {nodes}"
    if failed:
        count = len(failed)
        message = (
            f"{count} of {count + result.files} checkpoints of {result.run} did not arrive from {bucket.url}:"
            f" {failed[0].error}"
        )
        unreachable = all(isinstance(failure.error, BucketUnreachableError) for failure in failed)
        then = (
            "continues where this one ended"
            if unreachable
            else "tries again; files that are right already are not fetched again"
        )
        hint = f"hvdcloud pull {result.run} {then}"
    else:
        message = f"nothing of {whose} of {result.run} was fetched: {bad[0].error}"
        hint = bad[0].error.hint
        if result.files:
            message += f"; {result.files} checkpoint{'s' if result.files > 1 else ''} of the other nodes arrived"
    lines = [f"{failure.name}: {failure.error}" for failure in failed[:50]]
    lines += [str(each.error) for each in bad] if failed else [str(each.error) for each in bad[1:]]
    return PullError(message, hint=hint, details="\n".join(lines), result=result)


def _that_fit(
    bucket: Bucket, missing: list[Entry], *, root: Path, prefix: str, failed: dict[str, Exception]
) -> list[Entry]:
    """What is to be fetched, for which there is space; a size that the bucket itself contradicts does not count.

    Raises CapacityError: there is not enough space.
    """
    free = free_bytes(root)
    if sum(entry.size for entry in missing) > free:
        sizes = {info.name: info.size for info in bucket.list(prefix)}
        for entry in missing:
            if (there := sizes.get(prefix + entry.object)) != entry.size:
                what = f"{entry.name} in {bucket.url} is not what the manifest promises: {entry.size} bytes"
                failed[entry.name] = (
                    ObjectMissingError(what, hint="hvdcloud pull")
                    if there is None
                    else CorruptObjectError(what, hint="take an earlier checkpoint")
                )
        missing = [entry for entry in missing if entry.name not in failed]
    needed = sum(entry.size for entry in missing)
    if needed > free:
        raise CapacityError(
            f"the checkpoints need {_size(needed)} more, {root} has {_size(free)} left",
            hint="free some space, or pull to another folder with --to",
        )
    return missing


@contextlib.contextmanager
def _only_one(root: Path, *, run: str) -> Iterator[None]:
    """Two pulls into one folder would delete each other's unfinished files. The kernel frees the lock of a dead one."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(root, seconds=0))
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise disk_error(error, path=root, doing="locking") from error
            raise CheckpointError(
                f"another hvdcloud is pulling into {root}", hint=f"wait for it to end, then type: hvdcloud pull {run}"
            ) from error
        yield


def _size(count: int) -> str:
    """Bytes in megabytes, or in gigabytes where those are many."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"
