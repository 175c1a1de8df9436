"""The same call for several things at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_WORKERS = 32


def side_by_side(
    call: Callable[[T], R],
    items: Sequence[T],
    *,
    on_abort: Callable[[], object] = lambda: None,
    only_reads: bool = False,
) -> list[R]:
    """`call` for every item at once; the results in the items' order.

    Args:
        on_abort: called when one call has failed or the user interrupts; must make calls that still wait return
            early. Every call has ended when this function returns or raises.
        only_reads: when the user interrupts, calls are left to themselves instead of waited for.

    Raises the exception of the first item (in the items' order) that has failed by then.
    """
    if not items:
        return []
    pool = ThreadPoolExecutor(max_workers=min(len(items), MAX_WORKERS))
    calls = _Calls(call)
    interrupted = False
    try:
        try:
            # Ctrl-C may come when only some of the calls have begun.
            futures = [pool.submit(calls.begin, item) for item in items]
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            interrupted = True
            calls.close()
            _abort(pool, on_abort)
            raise
        for future in futures:
            if future in finished and (error := future.exception()):
                _abort(pool, on_abort)
                raise error
    finally:
        pool.shutdown(wait=not (interrupted and only_reads))
        if not only_reads:
            calls.wait()
    return [future.result() for future in futures]


class _Calls(Generic[T, R]):
    """The calls that run. The pool does not wait for a thread that Ctrl-C came upon while it was started."""

    def __init__(self, call: Callable[[T], R]) -> None:
        self._call = call
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    def begin(self, item: T) -> R:
        """Raises CancelledError after `close`."""
        with self._changed:
            if self._closed:
                raise CancelledError
            self._running += 1
        try:
            return self._call(item)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Have no more calls begin."""
        with self._changed:
            self._closed = True

    def wait(self) -> None:
        """Until none runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)


def _abort(pool: ThreadPoolExecutor, on_abort: Callable[[], object]) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    on_abort()
