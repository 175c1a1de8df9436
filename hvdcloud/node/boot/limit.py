"""What all limits that end a node do alike: read the environment, and start the process that acts."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import ClassVar, TypeVar

from hvdcloud.node.processes import own_program

L = TypeVar("L", bound="NodeLimit")


class NodeLimit(ABC):
    """A limit in the container's first process, which starts another process that acts when the limit is over.

    Args:
        limit: seconds.
    """

    variable: ClassVar[str]
    """The environment variable with the limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._actor: int | None = None

    @classmethod
    def wanted(cls: type[L]) -> L | None:
        """The limit that the environment asks for; None: there is none.

        Raises:
            ValueError: not a number of seconds.
        """
        text = os.environ.get(cls.variable)
        return cls(max(1.0, float(text))) if text else None

    def ended(self, children: set[int]) -> None:
        """Note that these processes have ended."""
        if self._actor in children:
            self._actor = None

    def check(self) -> None:
        """Check if it is time for that, and act once the limit is over. Never raises."""
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - a container's first process must not end for this
            sys.stderr.write(f"hvdcloud: {self.variable} was not checked: {type(error).__name__}: {error}\n")
            sys.stderr.flush()

    @abstractmethod
    def _check(self) -> None:
        """Called every second: note what is to be noted, and call `_act` if the limit is over."""

    def _act(self, *words: str) -> None:
        """Start the node program with these words, unless an earlier one is still running."""
        if self._actor is None:
            self._actor = os.posix_spawn(sys.executable, own_program(*words), os.environ, setsigmask=())
