"""Two clusters never get the same GPU: the labels of their containers are the lock.

A container says by a label which GPUs it has, from the moment when it is created, and gets them when it is started. Who
wants GPUs creates the containers, then lists all, and starts its own only if no other container holds one of them. Of
two that do so at once, at least one sees the other, since each has created its own before it lists. Where each sees the
other, the one that was asked for first waits until the other has withdrawn or has started, and the other withdraws. So
a container that is only created counts like one that runs: it may be about to start.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hvdcloud.cluster.model import LABEL_MANAGED_BY, MANAGED_BY
from hvdcloud.errors import CapacityError
from hvdcloud.providers.engine.gpus import Gpus, GpuShare, Holder, Wish, choose, device_request, holders

WITHDRAW_SECONDS = 60.0
"""How long another `up` may take to withdraw its containers, or to start them."""
_POLL_SECONDS = 0.05
_ASKED = {"label": f"{LABEL_MANAGED_BY}={MANAGED_BY}"}


class TakenError(CapacityError):
    """Another cluster has taken one of the GPUs meanwhile."""


def list_holders(api: Any) -> tuple[Holder, ...]:
    """The containers of ours on the engine of docker-py's `api` that have GPUs, or will have them."""
    return holders(api.containers(all=True, filters=_ASKED))


def assign_gpus(
    api: Any,
    found: Gpus,
    wish: Wish,
    *,
    nodes: int,
    indices: Sequence[int],
    hook: bool,
    place: str = "this machine",
) -> Mapping[int, GpuShare]:
    """What each of these nodes gets on one engine as things are now; nothing is changed, and nothing is claimed.

    Args:
        api: docker-py's, of the engine on the machine whose GPUs were `found`.
        nodes, indices, place: as for `choose`.
        hook: as for `device_request`.

    Raises:
        UsageError: there are not as many.  CapacityError: too few are free.
        NodeError: the engine cannot give GPUs to containers.
    """
    chosen = choose(found, list_holders(api), wish, nodes=nodes, indices=indices, place=place)
    info = api.info()
    return {
        index: GpuShare(devices=devices, request=device_request(info, devices, hook=hook))
        for index, devices in chosen.items()
    }


def claim(api: Any, made: Collection[str]) -> None:
    """Make sure that no other container holds a GPU of these, which may be started then.

    Args:
        made: ids of containers of one cluster, all that it wants to start on this engine; none is started yet.

    Raises:
        TakenError: another one holds some. The caller deletes its containers, and chooses again.
    """
    deadline = time.monotonic() + WITHDRAW_SECONDS
    while True:
        found = list_holders(api)
        ours = [holder for holder in found if holder.container in made]
        wanted = {gpu for own in ours for gpu in own.gpus}
        rivals = [holder for holder in found if holder.container not in made and holder.gpus & wanted]
        if not rivals:
            return
        first = min(own.rank for own in ours)
        winners = [holder for holder in rivals if holder.started or holder.rank <= first]
        if winners or time.monotonic() >= deadline:
            winner = (winners or rivals)[0]
            raise TakenError(
                f"{winner} has taken GPUs that were free a moment ago (container {winner.node})",
                hint="hvdcloud list shows it; up again, when it has ended",
            )
        time.sleep(_POLL_SECONDS)
