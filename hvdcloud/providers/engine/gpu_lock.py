"""Two clusters never get the same GPU: the labels of their containers are the lock.

A container says by a label which GPUs it has, from the moment when it is created, and gets them when it is started. Who
wants GPUs creates the containers, then lists all, and starts its own only if no other container holds one of them. Of
two that do so at once, at least one sees the other, since each has created its own before it lists, and withdraws; if
each sees the other, both do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hvdcloud.cluster.model import LABEL_MANAGED_BY, MANAGED_BY
from hvdcloud.errors import CapacityError
from hvdcloud.providers.engine.facts import Facts
from hvdcloud.providers.engine.gpus import GpuShare, Holder, Wish, choose, device_request, holders

_ASKED = {"label": f"{LABEL_MANAGED_BY}={MANAGED_BY}"}


def list_holders(api: Any) -> tuple[Holder, ...]:
    """The containers of ours on the engine of docker-py's `api` that have GPUs, or will have them."""
    return holders(api.containers(all=True, filters=_ASKED))


def assign_gpus(
    api: Any, facts: Facts, wish: Wish, *, nodes: int, indices: Sequence[int], place: str
) -> list[GpuShare]:
    """What each of these nodes gets on one engine as things are now; nothing is changed, and nothing is claimed.

    Args:
        api: docker-py's, of the engine on the machine that said these facts.
        nodes, indices, place: as for `choose`.

    Raises:
        UsageError: there are not as many.  CapacityError: too few are free.
        NodeError: the engine cannot give GPUs to containers, or the driver does not answer.
    """
    chosen = choose(facts.found_gpus(place), list_holders(api), wish, nodes=nodes, indices=indices, place=place)
    info = api.info()
    return [
        GpuShare(devices=chosen[index], request=device_request(info, chosen[index], hook=facts.hook))
        for index in indices
    ]


def claim(api: Any, made: Collection[str]) -> None:
    """Make sure that no other container holds a GPU of these, which may be started then.

    Args:
        made: ids of containers of one cluster, all that it wants to start on this engine.

    Raises:
        CapacityError: another one holds some. The caller deletes or ends its containers.
    """
    found = list_holders(api)
    for own in found:
        for other in found:
            if own.container in made and other.container not in made and own.gpus & other.gpus:
                raise CapacityError(
                    f"{own.node} cannot have its GPUs: {other} has them (container {other.node})",
                    hint="hvdcloud list shows it; if it is not there any more, the same command again",
                )
