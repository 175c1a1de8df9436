"""The same call for several things at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

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
    interrupted = False
    try:
        try:
            # Ctrl-C may come when only some of the calls have begun.
            futures = [pool.submit(call, item) for item in items]
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            interrupted = True
            _abort(pool, on_abort)
            raise
        for future in futures:
            if future in finished and (error := future.exception()):
                _abort(pool, on_abort)
                raise error
    finally:
        pool.shutdown(wait=not (interrupted and only_reads))
    return [future.result() for future in futures]


def _abort(pool: ThreadPoolExecutor, on_abort: Callable[[], object]) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    on_abort()
