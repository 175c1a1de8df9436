"""The image on the hosts: pulled by its digest from a registry, or sent from this machine's engine over SSH."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from hvdcloud import engine
from hvdcloud.cluster.model import LABEL_OWNER
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, ImageError
from hvdcloud.image.engine_stream import BuildEvent, follow_pull, inspected, says_refused
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.host import SendProgress
from hvdcloud.image.publish.over_ssh import SILENCE_SECONDS, send_image
from hvdcloud.providers.base import NodeProgress, OnProgress, Stage
from hvdcloud.providers.ssh.hosts import Host, Hosts
from hvdcloud.visible import words


def is_at_registry(image: str) -> bool:
    """Whether the hosts pull it; else it is on this machine's engine."""
    return "@" in image


def image_here(image: str) -> dict[str, Any] | None:
    """What this machine's engine says of it; None: it does not have it. Raises NodeError: there is no engine here."""
    with contextlib.closing(engine.connect()) as client:
        return inspected(client.api, image)


def bring(image: str, hosts: Hosts, chosen: Sequence[Host], *, owner: str, on_progress: OnProgress) -> None:
    """Have every chosen host have the image; only what it lacks is moved, to all at once.

    Raises:
        ImageError: it does not exist, or an engine or a registry refuses.
        CredentialsError: the registry does not take the credentials of this machine.
        NodeError: a connection was lost; what has arrived there stays, and the next time the rest is sent.
        CapacityError: a host's disk is full.
    """
    if is_at_registry(image):
        _pull(image, hosts, chosen, on_progress=on_progress)
        return

    def show(sent: SendProgress) -> None:
        done = sent.done if sent.done < sent.total else None
        stage = Stage.DONE if sent.step == "has the image" else Stage.WORKING
        on_progress(
            NodeProgress(object=sent.host, step=sent.step, stage=stage, done=done, total=sent.total, in_bytes=True)
        )

    found = hosts.require(lambda host: host.connection.engine(silence=SILENCE_SECONDS), chosen)
    with contextlib.closing(engine.connect(timeout=SILENCE_SECONDS)) as here:
        send_image(image, source=here.api, targets=found, on_progress=show, labels={LABEL_OWNER: owner})


def _pull(image: str, hosts: Hosts, chosen: Sequence[Host], *, on_progress: OnProgress) -> None:
    from docker.errors import APIError, DockerException
    from docker.utils import parse_repository_tag

    def has_it(host: Host) -> bool:
        return inspected(host.connection.engine(silence=SILENCE_SECONDS), image) is not None

    found = hosts.require(has_it, chosen)
    lacking = [host for host in chosen if not found[host.name]]
    if not lacking:
        return
    at = registry.host_of(image)
    # Only where something is pulled: a token of Google's takes a second.
    credentials = registry.auth_config(at)

    def pull(host: Host) -> None:
        api = host.connection.engine(silence=SILENCE_SECONDS)
        on_progress(NodeProgress(object=host.name, step="pulling the image"))

        def show(event: BuildEvent) -> None:
            on_progress(NodeProgress(object=host.name, step=f"pulling the image: {event.text}"))

        repository, digest = parse_repository_tag(image)
        try:
            items = api.pull(repository, tag=digest, stream=True, decode=True, auth_config=credentials)
            follow_pull(items, reference=image, progress=show)
        except ImageError as error:
            raise _not_pulled(host, image, error.message) from error
        except APIError as error:
            raise _not_pulled(host, image, f"{image} was not pulled: {words(error.explanation or error)}") from error
        except DockerException as error:
            raise registry.unreadable_credentials(at, error) from error
        on_progress(NodeProgress(object=host.name, step="has the image", stage=Stage.DONE))

    hosts.require(pull, lacking)


def _not_pulled(host: Host, image: str, said: str) -> HvdcloudError:
    """The error of a host whose engine, or the registry, refuses."""
    if engine.says_disk_full(said):
        return CapacityError(
            f"the disk of {host.name}'s Docker engine is full: {said}",
            hint=f"{host.by_hand('docker system df')} shows what uses it",
        )
    if says_refused(said):
        return CredentialsError(f"{host.name}: {said}", hint=registry.role_hint(registry.host_of(image)))
    shown = host.by_hand(f"docker pull {image}")
    hint = f"hvdcloud push brings it to the registry; {shown} shows whether the host reaches that"
    return ImageError(f"{host.name}: {said}", hint=hint)
