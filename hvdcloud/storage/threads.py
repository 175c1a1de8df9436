"""Work spread over threads that never keep a process alive.

concurrent.futures joins its threads when the interpreter ends, so one request that hangs would hold up a node that has
seconds left to live. These are daemon threads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """What became of one item: either `result` or `error` is set."""

    item: Item
    result: Result | None = None
    error: Exception | None = None


def attempt(item: Item, work: Callable[[Item], Result]) -> Outcome[Item, Result]:
    """Do `work` on the item; what it raises is the outcome's error, whatever it is."""
    try:
        return Outcome(item=item, result=work(item))
    except Exception as error:  # noqa: BLE001 - handed to the caller, which decides item by item
        return Outcome(item=item, error=error)


def parallel(items: Sequence[Item], work: Callable[[Item], Result], *, workers: int) -> Iterator[Outcome[Item, Result]]:
    """Do `work` on every item, at most `workers` at a time; yields outcomes in the order in which they end.

    Outcomes are yielded in the caller's thread. A caller that stops iterating starts no further item.
    """
    pending: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        pending.put(item)
    done: queue.SimpleQueue[Outcome[Item, Result]] = queue.SimpleQueue()
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            try:
                item = pending.get_nowait()
            except queue.Empty:
                return
            done.put(attempt(item, work))

    for _ in range(min(workers, len(items))):
        threading.Thread(target=serve, name="hvdcloud-transfer", daemon=True).start()
    try:
        for _ in items:
            yield done.get()
    finally:
        stopped.set()
