"""`send_image`: an image of this machine's engine to the engines of other machines, without a registry.

Only layers that a host lacks travel, in portions from the lowest layer up. What has arrived is an image of its own
until the next portion is there, so that a host whose connection was cut takes the rest the next time. A portion travels
while the host unpacks the one before. Hosts are sent to side by side, each at its own speed; the image is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hvdcloud.errors import HvdcloudError, ImageError, first_of
from hvdcloud.image.publish.host import Host, SendProgress, Sent
from hvdcloud.image.publish.layer_archive import wanted_from
from hvdcloud.image.publish.layer_export import Export, image_of_lowest_layers
from hvdcloud.parallel import side_by_side

SILENCE_SECONDS = 600
"""For so long an engine may be silent that unpacks a layer of gigabytes: the timeout that both sides' clients need."""


def send_image(
    image: str,
    *,
    source: Any,
    targets: Mapping[str, Any],
    on_progress: Callable[[SendProgress], None] = lambda _: None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Sent]:
    """Has every target's engine have the image under the same name; sends only what it lacks, at once to all.

    What arrived completely before a connection was cut, or Ctrl-C, stays on the host and is not sent again;
    `host.discard_parts` deletes it.

    Args:
        image: a reference or an id.
        source: docker-py's APIClient of the engine that has it.
        targets: APIClients of the hosts' engines, by the hosts' names; used by a few threads. They allow silence of
            `SILENCE_SECONDS`.
        on_progress: may be called from several threads at once.
        labels: of what is on a host only while not all has arrived.

    Returns:
        what was sent, by host.

    Raises the error of the first host, with the others' messages in its details, when all have ended:
        NodeError: the connection was cut.
        CapacityError: the host's disk is full, or this machine's; what had been sent is deleted again.
        ImageError: there is no such image, or the host's engine refuses it.
    """
    inspected = _image_here(source, image)
    tag = image if image in inspected["RepoTags"] else ""
    wanted = wanted_from(inspected, tag=tag, labels=labels or {})
    hosts = [Host(name=name, client=client, wanted=wanted, say=on_progress) for name, client in targets.items()]
    errors = [error for error in side_by_side(lambda host: _caught(host.look, inspected), hosts) if error]
    lacking = [host for host in hosts if not host.complete]
    if errors:
        raise first_of(errors)
    if lacking:
        # The engine here needs a while before it gives the first layer: hosts say meanwhile which ones they have.
        count = Counter({layer: len(lacking) for layer in wanted.layers})
        lowest = image_of_lowest_layers(source, inspected)
        export = Export(
            lambda: source.get_image(wanted.id),
            lowest=(lambda: source.get_image(lowest)) if lowest else None,
            image=image,
            image_id=wanted.id,
            layers=wanted.layers,
            wanted=count,
        )
        with export:
            errors = [
                error
                for error in side_by_side(
                    lambda host: _caught(host.take, export, inspected), lacking, on_abort=export.close
                )
                if error
            ]
        if errors:
            raise first_of(errors)
    return {host.name: host.sent() for host in hosts}


def _image_here(source: Any, image: str) -> dict[str, Any]:
    from docker.errors import ImageNotFound

    try:
        inspected: dict[str, Any] = source.inspect_image(image)
    except ImageNotFound:
        raise ImageError(f"there is no image {image} to send", hint="hvdcloud build") from None
    return {**inspected, "RepoTags": inspected.get("RepoTags") or []}


def _caught(call: Callable[..., None], *args: object) -> HvdcloudError | None:
    try:
        call(*args)
    except HvdcloudError as error:
        return error
    return None
