"""What a killed test session left at a Docker engine: it carries a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from docker.errors import APIError


def remove_labelled(client: Any, *labels: str, unless: Callable[[Mapping[str, str]], bool]) -> list[str]:
    """Remove containers, volumes and networks, in the order in which that works.

    Args:
        client: docker-py's.
        labels: only what has one of them.
        unless: spares what has these labels.

    Returns:
        `kind name` of what was removed.

    Raises:
        APIError: the engine failed. What removes itself, or is in use, is none.
    """
    removed = []
    # Networks last, and volumes before them: containers use both.
    for kind, find in (("container", _containers), ("volume", _volumes), ("network", _networks)):
        for label in labels:
            for name, its_labels, remove in find(client, {"label": label}):
                if not unless(its_labels) and _is_gone_by(remove):
                    removed.append(f"{kind} {name}")
    return removed


_Found = Iterator[tuple[str, Mapping[str, str], Callable[[], None]]]


def _containers(client: Any, filters: Mapping[str, str]) -> _Found:
    for each in client.containers.list(all=True, filters=filters, ignore_removed=True):
        yield each.name, each.labels, partial(each.remove, force=True)


def _volumes(client: Any, filters: Mapping[str, str]) -> _Found:
    for each in client.volumes.list(filters=filters):
        yield each.name, each.attrs["Labels"], each.remove


def _networks(client: Any, filters: Mapping[str, str]) -> _Found:
    for each in client.networks.list(filters=filters):
        yield each.name, each.attrs["Labels"], each.remove


def _is_gone_by(remove: Callable[[], None]) -> bool:
    try:
        remove()
    except APIError as error:
        # It removes itself, or a network that a stranger of the user's is in.
        if error.status_code not in (403, 404, 409):
            raise
        return False
    return True
