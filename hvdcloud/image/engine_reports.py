"""What is said while an image is built, pushed or pulled, and what the engine says of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from docker.errors import ImageNotFound


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


def says_refused(said: str) -> bool:
    """Whether a registry did not take the credentials; the engine passes its answer on in words alone."""
    words = ("unauthorized", "authentication required", "denied", "no basic auth")
    return any(word in said.lower() for word in words)


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
