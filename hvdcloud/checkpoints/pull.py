"""From the bucket to this disk: every file of a run, verified, under `TARGET/RUN/`.

Pulling again continues where the last pull ended, however it ended: files that are right are not fetched again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
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
    CorruptObjectError,
    ObjectMissingError,
    disk_error,
    ignores_case,
    locked,
)
from hvdcloud.units import counted, size

WORKERS = 8
MOST_LINES = 50
"""Of what did not arrive, in the details of an error."""
# A running node replaces objects while we fetch: its manifest is read again this many times.
_ROUNDS = 4
_OnDone = Callable[[Entry, Path, Exception | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledRun:
    """One run's checkpoints on this disk."""

    run: str
    folder: Path
    files: int
    """How many are on this disk, verified."""
    others: int = 0
    """How many of them are neither models nor of the checkpoint directory."""
    fetched: int = 0
    """How many of them this pull brought."""
    bytes_fetched: int
    complete: bool
    """Every node has finished uploading, so there is nothing more to come."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names that stay in the bucket, since a program on this machine could take them for a repository, and why."""


class PullError(CheckpointError):
    """Some files could not be brought; all others were.

    Attributes:
        pulled: what is on this disk.
        failed: the error of each file that is not, and of each manifest that cannot be used, by its name.
    """

    def __init__(self, bucket: Bucket, pulled: PulledRun, files: Mapping[str, Exception], bad: Sequence[BadManifest]):
        self.pulled = pulled
        self.failed = {**files, **{each.name: each.error for each in bad}}
        first, run = next(iter(self.failed.values())), pulled.run
        if files:
            message = (
                f"{len(files)} of {len(files) + pulled.files} checkpoints of {run} did not arrive from {bucket.url}"
            )
            hint = f"hvdcloud pull {run} continues where this one ended"
        else:
            nodes = ", ".join(str(each.node) for each in bad)
            message = f"nothing of node{'s' if len(bad) > 1 else ''} {nodes} of {run} was fetched"
            hint = bad[0].error.hint
        arrived = (
            f"; {counted(pulled.files, 'checkpoint')} of the other nodes arrived" if pulled.files and not files else ""
        )
        lines = [f"{name}: {error}" for name, error in self.failed.items()]
        super().__init__(f"{message}: {first}{arrived}", hint=hint, details="\n".join(lines[:MOST_LINES]))


def pull(
    bucket: Bucket,
    *,
    cluster: str,
    run: str,
    target: Path,
    verified_files: VerifiedFiles,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> PulledRun:
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
    bringing = _Bringing(bucket, run_prefix(cluster, run), root, verified_files, on_progress)
    if not manifests:
        raise PullError(bucket, bringing.result(complete=False), {}, bad)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, path=root, doing="making") from error
    with _only_one(root, run=run):
        remove_partials(root)
        try:
            for round_number in range(1, _ROUNDS + 1):
                bringing.bring(manifests)
                replaced = any(isinstance(error, ObjectMissingError) for error in bringing.failed.values())
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
    pulled = bringing.result(complete=complete)
    if bringing.failed or bad:
        raise PullError(bucket, pulled, bringing.failed, bad)
    return pulled


class _Bringing:
    """Fetches what manifests list or announce, and is not here."""

    def __init__(
        self,
        bucket: Bucket,
        prefix: str,
        root: Path,
        verified_files: VerifiedFiles,
        on_progress: Callable[[int, int], object],
    ) -> None:
        self._bucket, self._prefix, self._root = bucket, prefix, root
        self._cluster, self._run, _ = prefix.split("/")
        self._verified_files, self._on_progress = verified_files, on_progress
        self._total = 0
        """Bytes of all that is listed."""
        self._begin()

    def _begin(self) -> None:
        self.failed: dict[str, Exception] = {}
        self._refused: dict[str, str] = {}
        self._files = self._others = self._bytes = 0
        """Of what is on this disk, verified."""
        self._fetched = self._bytes_fetched = 0

    def bring(self, manifests: Sequence[Manifest]) -> None:
        """Fetch what these manifests list or announce; `failed` says what of it did not come."""
        self._begin()
        wanted = {entry.name: entry for manifest in manifests for entry in manifest.files}
        announced = [entry for manifest in manifests for entry in manifest.uploading]
        names = [*wanted, *(entry.name for entry in announced)]
        self._refused = refusals(names, present=functools.partial(_names_in, self._root))
        clashing = clashes(names, ignores_case=ignores_case(self._root))
        left_out = {**self._refused, **clashing}
        for name in wanted.keys() & (clashing.keys() - self._refused.keys()):
            why = f"{name} is not fetched: {clashing[name]}"
            self.failed[name] = CheckpointError(why, hint="rename one of the two")
        wanted = {name: entry for name, entry in wanted.items() if name not in left_out}
        announced = [entry for entry in announced if entry.name not in left_out]
        places = local_paths(self._root, [*wanted, *(entry.name for entry in announced)])
        self._total = sum(entry.size for entry in wanted.values())
        self._report()
        missing = [entry for entry in wanted.values() if not self._has(entry, places[entry.name])]
        self._report()
        self._fetch(self._that_fit(missing), places, self._done)
        # A node replaced or made these and has not listed them yet; if it died, it never will.
        unlisted = [entry for entry in announced if entry.name not in wanted or entry.name in self.failed]
        self._fetch(
            [entry for entry in unlisted if not self._has(entry, places[entry.name])], places, self._announced_done
        )

    def result(self, *, complete: bool) -> PulledRun:
        """What the last `bring` did."""
        return PulledRun(
            run=self._run,
            folder=self._root,
            files=self._files,
            others=self._others,
            fetched=self._fetched,
            bytes_fetched=self._bytes_fetched,
            complete=complete,
            refused=self._refused,
        )

    def _fetch(self, entries: Sequence[Entry], places: Mapping[str, Path], on_done: _OnDone) -> None:
        wanted = [(entry, places[entry.name]) for entry in entries]
        fetch(self._bucket, wanted, prefix=self._prefix, workers=WORKERS, on_done=on_done)

    def _done(self, entry: Entry, path: Path, error: Exception | None) -> None:
        if error is not None:
            self.failed[entry.name] = error
            return
        self._keep(entry, path)
        self._fetched += 1
        self._bytes_fetched += entry.size
        self._report()

    def _announced_done(self, entry: Entry, path: Path, error: Exception | None) -> None:
        # What does not have the announced bytes is still being uploaded, or was lost with its node: no failure.
        if error is None:
            self._done(entry, path, None)

    def _report(self) -> None:
        self._on_progress(self._bytes, self._total)

    def _has(self, entry: Entry, path: Path) -> bool:
        """Whether this file is the one promised: by the ledger if nothing touched it since, else by its bytes."""
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                return False
            known = self._verified_files.get(cluster=self._cluster, run=self._run, name=entry.name)
            at = (str(path), status.st_mtime_ns)
            is_known = known is not None and known.holds(entry) and (known.path, known.mtime_ns) == at
            if not is_known and not has_bytes_of(path, entry):
                return False
        except OSError:
            return False  # To fetch it says what this disk has against it.
        self._keep(entry, path)
        return True

    def _keep(self, entry: Entry, path: Path) -> None:
        """The file is here, verified."""
        self.failed.pop(entry.name, None)
        self._files += 1
        self._others += not is_checkpoint(entry.name)
        self._bytes += entry.size
        self._verified_files.add(
            Verified(
                cluster=self._cluster,
                run=self._run,
                name=entry.name,
                crc32c=entry.crc32c,
                size=entry.size,
                path=str(path),
                mtime_ns=path.lstat().st_mtime_ns,
            )
        )

    def _that_fit(self, missing: list[Entry]) -> list[Entry]:
        """What is to be fetched, for which there is space; a size that the bucket itself contradicts does not count.

        Raises CapacityError: there is not enough space.
        """
        free = shutil.disk_usage(self._root).free
        if sum(entry.size for entry in missing) > free:
            sizes = {info.name: info.size for info in self._bucket.list(self._prefix)}
            for entry in missing:
                there = sizes.get(self._prefix + entry.object)
                what = f"{entry.name} in {self._bucket.url} is not what the manifest promises: {entry.size} bytes"
                if there is None:
                    self.failed[entry.name] = ObjectMissingError(what, hint="hvdcloud pull")
                elif there != entry.size:
                    self.failed[entry.name] = CorruptObjectError(what, hint="take an earlier checkpoint")
            missing = [entry for entry in missing if entry.name not in self.failed]
        needed = sum(entry.size for entry in missing)
        if needed > free:
            raise CapacityError(
                f"the checkpoints need {size(needed)} more, {self._root} has {size(free)} left",
                hint="free some space, or pull to another folder with --to",
            )
        return missing


def _names_in(root: Path, folder: str) -> Sequence[str]:
    """What a folder of the run has on this disk, perhaps from an earlier pull."""
    try:
        return os.listdir(root / folder)
    except OSError:
        return ()


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
