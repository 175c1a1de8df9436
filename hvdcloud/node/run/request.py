"""What a run's supervisor is asked to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hvdcloud.node.channel import BEAT_SECONDS

if TYPE_CHECKING:
    from hvdcloud.node.data.sets import DataRequest


START_SECONDS = 15.0
"""How long an agent may take to start, over ssh and beside everything else that starts then."""


class Host(NamedTuple):
    """A node of an elastic run."""

    name: str
    number: int
    """0: the head."""
    slots: int
    """Ranks that it takes; 0: it only drives."""


class Elastic(NamedTuple):
    """How far a run may shrink and grow, in nodes; a head that only drives is one of them."""

    least: int
    most: int
    hosts: tuple[Host, ...]
    """Those that it starts with, the head first."""


class Request(NamedTuple):
    """What `launch` is asked to do."""

    run: str
    cluster: str
    hosts: tuple[str, ...]
    """Names of the nodes, head first."""
    np: int
    horovodrun: tuple[str, ...]
    """horovodrun's command line, without what each rank runs."""
    gloo_timeout: float
    """Seconds after which a frozen node ends the run."""
    controller: str
    elastic: Elastic | None = None
    stuck: float | None = None
    """Seconds without any sign of work after which the run is ended; None: it is not watched."""
    data: DataRequest | None = None
    """The data sets that nodes with ranks have before a rank starts, as the first of them gets them."""
    beat: float = BEAT_SECONDS
    """Seconds between two heartbeats of the supervisor and its agents."""
    start: float = START_SECONDS
    """Seconds after which an agent that has not started is given up."""
