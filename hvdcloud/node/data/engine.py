"""What the fetcher does: list all sets, see that there is space, fetch each, and make it visible whole."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator

from hvdcloud.errors import CapacityError, ExitCode, HvdcloudError, NodeError
from hvdcloud.node import machine, paths
from hvdcloud.node.data import listing, tree
from hvdcloud.node.data.board import Board
from hvdcloud.node.data.plan import RANGE, Plan, is_ranged, make_plan, range_line
from hvdcloud.node.data.sets import FAILED, FETCHING, LISTING, READY, VERIFYING, DataRequest, DataState
from hvdcloud.node.data.tasks import Done, Failure, Task, failure_of
from hvdcloud.node.data.workers import Workers, corrupt
from hvdcloud.storage.access_token import AccessToken
from hvdcloud.storage.checksum import combined_crc32c, crc32c_text
from hvdcloud.storage.reader import open_reader

BATCH_FILES = 16
BATCH_BYTES = 4 << 20
SPACE_HINT = (
    "on Compute Engine, set a larger gce.disk_gb in hvdcloud.yaml, then hvdcloud down and up; "
    "with provider local, free space where Docker keeps its containers"
)


class _FailureError(HvdcloudError):
    """A worker's failure, with its exit code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.code = ExitCode(failure.exit_code)


def fetch_all(request: DataRequest, *, publish: Callable[[tuple[DataState, ...]], None]) -> None:
    """Bring each data set; what fails of one stops no other."""
    os.umask(0o022)
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    # Before there are threads.
    workers = Workers(request)
    try:
        with Board((each.name for each in request.sets), publish) as board:
            plans = []
            for number, each in enumerate(request.sets):
                with _shown(board, each.name):
                    if each.mounted:
                        _check_mounted(each.name)
                        board.update(each.name, phase=READY)
                    elif (plan := _planned(number, request, board)) is not None:
                        plans.append(plan)
            for plan in _with_space(plans, board):
                with _shown(board, plan.wanted.name), tree.WriteOut(plan.wanted.name) as written:
                    _Fetch(plan, workers, board, url=request.sets[plan.number].source).run()
                    board.update(plan.wanted.name, phase=VERIFYING)
                    tree.make_visible(plan.wanted.name, written)
                    board.update(plan.wanted.name, phase=READY)
    finally:
        workers.close()


@contextlib.contextmanager
def _shown(board: Board, name: str) -> Iterator[None]:
    """Whatever fails is the end of this set alone."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - shown to the user
        if isinstance(error, HvdcloudError):
            why = error
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = CapacityError(f"data set {name}: the disk of {paths.data_dir()} is full", hint=SPACE_HINT)
        else:
            why = NodeError(f"data set {name}: {error or type(error).__name__}", hint="hvdcloud run again")
        board.update(name, phase=FAILED, error=why.message, hint=why.hint, exit_code=int(why.code))


def _check_mounted(name: str) -> None:
    if not tree.set_dir(name).is_dir():
        why = f"data set {name} is not mounted at {tree.set_dir(name)}"
        raise NodeError(why, hint="hvdcloud down and hvdcloud up make the nodes with it")


def _planned(number: int, request: DataRequest, board: Board) -> Plan | None:
    wanted = request.sets[number]
    board.update(wanted.name, phase=LISTING)
    token = AccessToken(on_vm=machine.on_vm())
    plan = make_plan(
        number,
        request,
        lambda: open_reader(wanted.source, endpoint=request.endpoint, token=token),
        lambda files, size: board.update(wanted.name, total_files=files, total_bytes=size),
    )
    board.update(wanted.name, files=plan.present_files, bytes=plan.present_bytes)
    if not tree.tree_dir(wanted.name).exists():
        board.update(wanted.name, phase=READY)
        return None
    return plan


def _with_space(plans: list[Plan], board: Board) -> list[Plan]:
    """The plans, if the disk has space for all of them; else none, and each says so."""
    status = os.statvfs(paths.data_dir())
    needed, free = sum(plan.needed for plan in plans), status.f_bavail * status.f_frsize
    files = sum(plan.needed_files for plan in plans)
    what = ""
    if needed > free:
        what = f"{needed / 1e9:.2f} GB more, and the disk has {free / 1e9:.2f} GB left"
    elif status.f_files and files > status.f_favail:
        what = f"{files} more files, and the disk takes {status.f_favail}"
    if not what:
        return plans
    for plan in plans:
        name = plan.wanted.name
        with _shown(board, name):
            whose = f"data set {name} needs" if len(plans) == 1 else f"the data sets need, {name} among them,"
            raise CapacityError(f"{whose} {what}", hint=SPACE_HINT)
    return []


class _Fetch:
    """One set, from its plan to a tree in which every file is verified."""

    def __init__(self, plan: Plan, workers: Workers, board: Board, *, url: str) -> None:
        self._plan = plan
        self._workers = workers
        self._board = board
        self._url = url
        self._stopped = threading.Event()
        self._fed = threading.Event()
        self._again: queue.SimpleQueue[listing.Object | None] = queue.SimpleQueue()
        # Each is changed by one thread only.
        self._sent = self._sent_again = self._received = 0
        self._files, self._bytes = plan.present_files, plan.present_bytes
        self._large: dict[str, listing.Object] = {}
        self._repeated: set[str] = set()
        self._failure: Failure | None = None

    def run(self) -> None:
        """Raises HvdcloudError: the first thing that failed."""
        self._board.update(self._plan.wanted.name, phase=FETCHING)
        feeder = threading.Thread(target=self._feed, name="hvdcloud-data-feeder", daemon=True)
        feeder.start()
        with self._plan.ranges_file.open("ab", buffering=0) as ranges:
            while not (self._fed.is_set() and self._received == self._sent + self._sent_again):
                results = self._workers.receive()
                self._received += results.tasks
                self._files += results.files
                self._bytes += results.size
                for done in results.others:
                    self._take(done, ranges.write)
                self._board.update(self._plan.wanted.name, files=self._files, bytes=self._bytes)
        self._again.put(None)
        feeder.join()
        if self._failure is not None:
            raise _FailureError(self._failure)

    def _take(self, done: Done, note: Callable[[bytes], object]) -> None:
        task = done.task
        if done.failure is not None:
            self._fail(done.failure)
        else:
            self._bytes += task.size
            note(range_line(task.name, task.generation, task.start, done.crc))
            ranges = self._plan.ranges.setdefault((task.name, task.generation), {})
            ranges[task.start] = done.crc
            each = self._large[task.name]
            if len(ranges) == _count(each.size):
                self._finish(each, ranges)

    def _finish(self, each: listing.Object, ranges: dict[int, int]) -> None:
        """All ranges of a large object have come: they have to be what its CRC32C says."""
        crc = 0
        for start in sorted(ranges):
            crc = combined_crc32c(crc, ranges[start], second_size=min(RANGE, each.size - start))
        del self._plan.ranges[each.name, each.generation]
        if each.crc32c and crc32c_text(crc) != each.crc32c:
            self._bytes -= each.size
            if each.name in self._repeated:
                self._fail(failure_of(corrupt(each.name, self._url)))
                return
            self._repeated.add(each.name)
            self._sent_again += _count(each.size)
            self._again.put(each)
            return
        path = tree.tree_dir(self._plan.wanted.name) / each.name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
            os.fchmod(file.fileno(), tree.FILE_MODE)
            tree.mark(file.fileno(), each.generation)
        self._files += 1
        del self._large[each.name]

    def _fail(self, failure: Failure) -> None:
        if self._failure is None:
            if failure.errno in (errno.ENOSPC, errno.EDQUOT):
                why = f"data set {self._plan.wanted.name}: the disk of {paths.data_dir()} is full"
                failure = Failure(message=why, hint=SPACE_HINT, exit_code=int(ExitCode.CAPACITY))
            self._failure = failure
        self._stopped.set()
        self._workers.skip(self._plan.number)

    # -- in a thread of its own --------------------------------------------------------------------------------------

    def _feed(self) -> None:
        try:
            self._feed_all()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._failure = Failure(message=f"{error}", hint="hvdcloud run again", exit_code=int(ExitCode.NODE))
        finally:
            self._fed.set()
        while (each := self._again.get()) is not None:
            for task in self._ranges_of(each, {}):
                self._workers.send([task])

    def _feed_all(self) -> None:
        small, others = _Batch(self._send), _Batch(self._send)
        for each in listing.objects(self._plan.todo):
            if self._stopped.is_set():
                return
            if is_ranged(each.size):
                self._large[each.name] = each
                for task in self._prepared(each):
                    if self._stopped.is_set():
                        return
                    self._send([task])
                continue
            task = Task(
                data_set=self._plan.number,
                name=each.name,
                size=each.size,
                crc32c=each.crc32c,
                generation=each.generation,
            )
            (small if self._workers.takes_as_small(task.data_set, task.size) else others).add(task)
        small.send()
        others.send()

    def _send(self, tasks: list[Task]) -> None:
        self._sent += len(tasks)
        self._workers.send(tasks)

    def _prepared(self, each: listing.Object) -> Iterator[Task]:
        path = tree.tree_dir(self._plan.wanted.name) / each.name
        done = self._plan.ranges.get((each.name, each.generation), {})
        if not done:
            path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.truncate(each.size)
        return self._ranges_of(each, dict(done))

    def _ranges_of(self, each: listing.Object, done: dict[int, int]) -> Iterator[Task]:
        for start in range(0, each.size, RANGE):
            if start not in done:
                yield Task(
                    data_set=self._plan.number,
                    name=each.name,
                    size=min(RANGE, each.size - start),
                    crc32c="",
                    generation=each.generation,
                    start=start,
                    whole=False,
                )


class _Batch:
    """Tasks that are sent together, once they are enough."""

    def __init__(self, send: Callable[[list[Task]], object]) -> None:
        self._send = send
        self._tasks: list[Task] = []
        self._bytes = 0

    def add(self, task: Task) -> None:
        self._tasks.append(task)
        self._bytes += task.size
        if len(self._tasks) >= BATCH_FILES or self._bytes >= BATCH_BYTES:
            self.send()

    def send(self) -> None:
        if self._tasks:
            self._send(self._tasks)
        self._tasks, self._bytes = [], 0


def _count(size: int) -> int:
    return -(-size // RANGE)
