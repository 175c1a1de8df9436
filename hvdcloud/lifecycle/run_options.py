"""What a command may ask of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a command may ask of a run."""

    command: Sequence[str] = ()
    """What every rank runs; empty: `run.command`."""
    ranks: int | None = None
    detach: bool = False
    down_when_done: bool = False
    fresh: bool = False
    """Do not continue from the cluster's previous run."""
    resume: str | None = None
    """The run to continue from, of a cluster of this name that may be gone; None: the cluster's previous one."""
    timeline: bool = False
    """Let Horovod write down what it does and when."""
    autotune: bool = False
    """Let Horovod look for better parameters of its own."""
