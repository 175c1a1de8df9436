"""The image on the hosts: pulled by its digest, from its repository or from a registry on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from hvdcloud import engine
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, ImageError
from hvdcloud.image.engine_reports import BuildEvent, inspected, says_refused
from hvdcloud.image.publish import registry
from hvdcloud.image.publish.transfer import pull
from hvdcloud.providers.base import NodeProgress, OnProgress, Stage
from hvdcloud.providers.ssh.connection import Host
from hvdcloud.providers.ssh.hosts import Hosts
from hvdcloud.providers.ssh.laptop_registry import LaptopRegistry, NoRegistryError, laptop_registry
from hvdcloud.visible import words

SILENCE_SECONDS = 600
"""For so long an engine may be silent that unpacks a layer of gigabytes."""


def is_at_registry(image: str) -> bool:
    """Whether the hosts pull it; else it is on this machine's engine."""
    return "@" in image


def same_image(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether two engines speak of one image: by its id, or, as engines with containerd's store number images in
    another way, by its layers and the time at which it was made."""
    return here["Id"] == there["Id"] or all(here[key] == there[key] for key in ("RootFS", "Created", "Architecture"))


def bring(image: str, hosts: Hosts, chosen: Sequence[Host], *, on_progress: OnProgress) -> None:
    """Have every chosen host have the image; layers that it has are not sent again.

    Raises:
        ImageError: it does not exist, or an engine or a registry refuses.
        CredentialsError: the registry does not take the credentials of this machine.
        NodeError: a connection was lost.
        CapacityError: a host's disk is full.
    """
    if is_at_registry(image):
        lacking = _lacking(image, None, hosts, chosen)
        hosts.require(lambda host: _pull(host, image, on_progress), lacking)
        return
    with contextlib.closing(engine.connect(timeout=SILENCE_SECONDS)) as here:
        wanted = inspected(here.api, image)
        if wanted is None:
            raise ImageError(f"there is no image {image} to send", hint="hvdcloud build")
        lacking = _lacking(image, wanted, hosts, chosen)
        if not lacking:
            return
        for host in lacking:
            on_progress(NodeProgress(object=host.name, step="packing the image on this machine"))
        try:
            with laptop_registry(here.api) as source:
                digest = source.push(here.api, image)
                hosts.require(lambda host: _pull_from(source, digest, image, host, on_progress), lacking)
        except NoRegistryError as error:
            why = error.message
            hosts.require(lambda host: _load(here.api, image, host, on_progress, why=why), lacking)


def _lacking(image: str, wanted: Mapping[str, Any] | None, hosts: Hosts, chosen: Sequence[Host]) -> list[Host]:
    """Those of the hosts that do not have the image; `wanted`: as this machine's engine describes it."""

    def has_it(host: Host) -> bool:
        there = inspected(_engine(host), image)
        return there is not None and (wanted is None or same_image(wanted, there))

    found = hosts.require(has_it, chosen)
    return [host for host in chosen if not found[host.name]]


def _engine(host: Host) -> Any:
    return host.engine(silence=SILENCE_SECONDS)


def _pull(
    host: Host, image: str, on_progress: OnProgress, *, name: str = "", credentials: Mapping[str, str] | None = None
) -> None:
    """From its repository; or under another name, from the registry that has these credentials."""

    def show(event: BuildEvent) -> None:
        on_progress(NodeProgress(object=host.name, step=f"pulling the image: {event.text}"))

    on_progress(NodeProgress(object=host.name, step="pulling the image"))
    try:
        pull(_engine(host), name or image, progress=show, credentials=credentials)
    except ImageError as error:
        raise _not_pulled(host, image, words(error.message)) from error
    on_progress(NodeProgress(object=host.name, step="has the image", stage=Stage.DONE))


def _pull_from(source: LaptopRegistry, digest: str, image: str, host: Host, on_progress: OnProgress) -> None:
    """From this machine's registry, which the host reaches at a port of its own loopback interface."""
    from docker.utils import parse_repository_tag

    with host.reverse(source.port) as port:
        name = f"127.0.0.1:{port}/hvdcloud@{digest}"
        _pull(host, image, on_progress, name=name, credentials=source.credentials)
        _engine(host).tag(name, *parse_repository_tag(image))
        _engine(host).remove_image(name)


def _load(here: Any, image: str, host: Host, on_progress: OnProgress, *, why: str) -> None:
    """The whole of it, as `docker save` and `docker load` do; the last way."""
    on_progress(NodeProgress(object=host.name, step=f"sending the whole image, because {why}"))
    for item in _engine(host).load_image(here.get_image(image), quiet=True):
        said = str(item.get("error") or item.get("stream") or "")
        if "error" in item or said.startswith("Error"):
            raise _not_pulled(host, image, f"{image} was not taken: {words(said)}")
    on_progress(NodeProgress(object=host.name, step="has the image", stage=Stage.DONE))


def _not_pulled(host: Host, image: str, said: str) -> HvdcloudError:
    """The error of a host whose engine, or the registry, refuses."""
    if engine.says_disk_full(said):
        return CapacityError(
            f"the disk of {host.name}'s Docker engine is full: {said}",
            hint=f"{host.by_hand('docker system df')} shows what uses it",
        )
    if says_refused(said):
        return CredentialsError(f"{host.name}: {said}", hint=registry.role_hint(registry.host_of(image)))
    hint = f"see the log of the Docker engine there: {host.by_hand('journalctl -u docker')}"
    if is_at_registry(image):
        shown = host.by_hand(f"docker pull {image}")
        hint = f"hvdcloud push brings it to the registry; {shown} shows whether the host reaches that"
    return ImageError(f"{host.name}: {said}", hint=hint)
