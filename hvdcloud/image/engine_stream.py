"""What is said while an image is built, pushed or pulled, and what the engine says of images.

A push or a pull that fails has answered 200 long before: the failure is one more item of the stream, and a caller
that does not check every item takes it for success.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from docker.errors import APIError, DockerException, ImageNotFound, StreamParseError
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from hvdcloud.engine import says_disk_full
from hvdcloud.errors import ImageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEvent:
    """One thing to show while an image is built, pushed or pulled.

    Attributes:
        kind: `image` one of several images is begun; `step` an instruction of its Dockerfile is begun; `output` a line
            that it prints; `layer` the state of one layer that is pulled or pushed; `warning` what the user has to know
            although the image is fine.
        text: the image, the instruction, the line or the layer's state.
        done, size: of a layer that is pushed, in bytes; 0: not known.
    """

    kind: Literal["image", "step", "output", "layer", "warning"]
    text: str
    done: int = 0
    size: int = 0


Progress = Callable[[BuildEvent], None]


def ignore(_event: BuildEvent) -> None:
    """The progress callback of a caller that wants none."""


def follow_push(items: Iterable[Mapping[str, Any]], *, reference: str, progress: Progress) -> str:
    """Reads a push's stream to its end; returns the manifest's digest (`sha256:…`) as the registry knows it.

    Raises:
        ImageError: the registry refused, cannot be reached, or the engine closed the connection.
    """
    digest = ""
    for item in _received(items, what=f"the push of {reference}"):
        if "error" in item:
            raise push_error(_error_text(item), reference=reference)
        digest = str(item.get("aux", {}).get("Digest", digest))
        # An engine with containerd's image store says it in words only.
        if said := re.search(r"digest: (sha256:[0-9a-f]{64})", str(item.get("status", ""))):
            digest = said[1]
        if "id" in item:
            progress(_layer(item))
    if not digest:
        message = f"the push of {reference} ended without a digest, so what the registry has is not known"
        raise ImageError(message, hint="hvdcloud push tries again")
    return digest


def follow_pull(items: Iterable[Mapping[str, Any]], *, reference: str, progress: Progress) -> None:
    """Reads a pull's stream to its end; each state of a layer is reported once, not every megabyte.

    Raises:
        ImageError: the registry refused or cannot be reached, or the engine closed the connection.
    """
    told: dict[str, BuildEvent] = {}
    for item in _received(items, what=f"the pull of {reference}"):
        if "error" in item:
            raise ImageError(f"{reference} was not pulled: {_error_text(item)}", hint="hvdcloud build tries again")
        if "id" in item:
            layer = replace(_layer(item), done=0, size=0)
            if told.get(str(item["id"])) != layer:
                told[str(item["id"])] = layer
                progress(layer)


def push_error(text: str, *, reference: str) -> ImageError:
    """The error of a push, with what to do about it."""
    registry = reference.partition("/")[0]
    hint = (
        f"check that {registry} is up and has image.repository, which hvdcloud setup makes; then hvdcloud push again: "
        "layers that have arrived are not sent twice"
    )
    if says_refused(text):
        hint = f"docker login {registry} (for Artifact Registry: gcloud auth configure-docker {registry})"
    return ImageError(f"{reference} was not pushed: {text}", hint=hint)


def says_refused(said: str) -> bool:
    """Whether a registry did not take the credentials; the engine passes its answer on in words alone."""
    words = ("unauthorized", "authentication required", "denied", "no basic auth")
    return any(word in said.lower() for word in words)


def disk_full(text: str, *, image: str) -> ImageError | None:
    """The error for an engine whose disk is full, or None if `text` is about something else."""
    if not says_disk_full(text):
        return None
    return ImageError(
        f"{image} can't be built: the disk of the Docker engine is full",
        hint="`docker system df` shows what uses it, `docker image prune` and `docker builder prune` free some",
        details=text,
    )


def _received(items: Iterable[Mapping[str, Any]], *, what: str) -> Iterator[Mapping[str, Any]]:
    """The items; a connection that breaks becomes an ImageError, an APIError stays what it is."""
    try:
        yield from items
    except APIError:
        # The engine's answer, not a broken connection: callers know what it refused.
        raise
    except (RequestException, HTTPError, StreamParseError, DockerException, OSError) as error:
        message = f"the Docker engine closed the connection during {what}: {error}"
        raise ImageError(message, hint="docker info shows whether it still runs; then try again") from error


def _error_text(item: Mapping[str, Any]) -> str:
    detail = item.get("errorDetail")
    text = detail.get("message") if isinstance(detail, Mapping) else None
    return str(text or item["error"]).strip()


def _layer(item: Mapping[str, Any]) -> BuildEvent:
    detail = item.get("progressDetail") or {}
    done, size = (int(detail.get(key) or 0) for key in ("current", "total"))
    return BuildEvent(kind="layer", text=f"{item['id']}: {item.get('status', '')}", done=done, size=size)


def inspected(api: Any, reference: str) -> dict[str, Any] | None:
    """What the engine says of an image; None if it has no such image."""
    try:
        return dict(api.inspect_image(reference))
    except ImageNotFound:
        return None


def other_architecture(api: Any, reference: str, wanted: str) -> str:
    """What an image of the engine is for, if it is not the wanted architecture; "": it is, there is no such image, or
    any will do."""
    found = str((inspected(api, reference) or {}).get("Architecture") or "") if wanted else ""
    return found if found != wanted else ""
