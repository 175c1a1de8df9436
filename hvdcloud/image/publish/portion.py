"""A portion of an image on its way to a host's engine, which takes one after the other while the next is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from hvdcloud.image.publish.layer_archive import Content

PORTION_BYTES = 16 << 20
"""Layers up to this size together go as one: each portion costs the engine a moment."""


def portions(sizes: Sequence[int], *, enough: int) -> list[int]:
    """How many layers go together, portion by portion: small ones up to `enough` bytes, a larger one alone."""
    found: list[int] = []
    room = 0
    for size in sizes:
        if found and size <= room:
            found[-1] += 1
        else:
            found.append(1)
            room = enough
        room -= size
    return found


class PortionBeforeError(Exception):
    """The engine did not take the portion before, whose error says why."""


@dataclass(slots=True, kw_only=True)
class Portion:
    """Layers that go to a host's engine as one. It unpacks them after the portion before, whose layers they lie on.

    Attributes:
        start: how many layers are below.
        config: the image's configuration, if these are its highest layers; else empty.
        before: the portion before.
        sent: set when the next one may follow.
        turn: when the engine could begin to unpack it, by the monotonic clock.
    """

    start: int
    contents: Sequence[Content]
    config: bytes
    before: Future[None] | None
    sent: threading.Event = field(default_factory=threading.Event)
    turn: float = 0.0

    def check(self) -> None:
        """Raise PortionBeforeError if there is nothing to lie on."""
        if self.before is not None and has_failed(self.before):
            raise PortionBeforeError

    def ended(self, _: Future[None]) -> None:
        """Called when the engine has taken it, or has not, which is known by then."""
        self.sent.set()

    def wait_for_turn(self) -> None:
        """Called when all but the archive's end has been sent; an engine unpacks nothing before it has that.

        Raises PortionBeforeError as `check` does.
        """
        self.sent.set()
        if self.before is not None:
            wait([self.before])
        self.check()
        self.turn = time.monotonic()


def has_failed(load: Future[None]) -> bool:
    """Whether it is known that the engine has not taken a portion."""
    return load.done() and load.exception() is not None
