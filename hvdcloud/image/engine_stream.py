"""What the Docker engine says while it builds or pushes: progress, and errors that are only in the stream.

A build or a push that fails has answered 200 long before: the failure is one more item of the stream, and a caller
that does not check every item takes it for success.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hvdcloud.engine import says_disk_full
from hvdcloud.errors import ImageError

KEPT_LINES = 20
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)", re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What the scripts in dockerfiles/own/ end a build with: the cause and the next command.
_REFUSAL = re.compile(r".*hvdcloud: refused: (.+)\n.*hvdcloud: next: (.+)")
_PIP_ERROR = re.compile(r"^ERROR: (.+)$", re.MULTILINE)
# The classic builder's own messages, which do not help in an error's last lines.
_CHATTER = re.compile(r" ?---> |Removing intermediate container |Successfully (built|tagged) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEvent:
    """One thing to show while an image is built or pushed.

    Attributes:
        kind: `image` one of several images is begun; `step` a step of its Dockerfile is begun, and `done` it is done;
            `output` a line that a step prints; `layer` the state of one layer that is pulled or pushed; `warning` what
            the user has to know although the image is fine.
        text: the image, the instruction, the line or the layer's state.
        step: the step's number, from 1; for a layer the bytes done. 0: not known.
        steps: how many there are; for a layer its bytes. 0: not known.
        stage: what a step does, in words. "": nothing that takes long, or it is not known.
    """

    kind: Literal["image", "step", "done", "output", "layer", "warning"]
    text: str
    step: int = 0
    steps: int = 0
    stage: str = ""


@dataclass(slots=True)
class Tail:
    """Where a build is (`at step 2/6: RUN …`) and what it said last, for the error if there is one."""

    where: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def text(self) -> str:
        return "\n".join(self.lines)


Progress = Callable[[BuildEvent], None]


def ignore(_event: BuildEvent) -> None:
    """The progress callback of a caller that wants none."""


def follow_build(items: Iterable[Mapping[str, Any]], *, image: str, pip_hint: str, progress: Progress) -> str:
    """Reads the items of docker-py's `build` to their end; returns the id of the image.

    Raises:
        ImageError: a step failed, the disk is full, or the engine broke off; `details` has the step's last lines.
    """
    tail = Tail(where="before its first step")
    image_id = ""
    unfinished = ""
    number = 0
    for item in _received(items, what=f"the build of {image}", tail=tail):
        if "error" in item:
            tail.lines.extend(lines_of(unfinished))
            raise build_error(_error_text(item), image=image, tail=tail, pip_hint=pip_hint)
        if "aux" in item:
            image_id = str(item["aux"].get("ID", image_id))
        if "id" in item:
            progress(_layer(item))
        # An item holds what one write of the step's process carried, which need not end where a line does.
        whole, newline, unfinished = (unfinished + str(item.get("stream") or "")).rpartition("\n")
        for line in lines_of(whole + newline):
            if step := _STEP.match(line):
                tail.where = f"at step {step[1]}/{step[2]}: {short(step[3])}"
                tail.lines.clear()
                if number:
                    progress(BuildEvent(kind="done", text="", step=number))
                number = int(step[1])
                progress(BuildEvent(kind="step", text=short(step[3]), step=number, steps=int(step[2])))
            elif not _CHATTER.match(line):
                tail.lines.append(line)
                progress(BuildEvent(kind="output", text=line, step=number))
    if not image_id:
        raise ImageError(
            f"the build of {image} ended {tail.where}, without an image and without saying why",
            hint="see the Docker engine's own log: journalctl -u docker",
            details=tail.text(),
        )
    if number:
        progress(BuildEvent(kind="done", text="", step=number))
    return image_id


def follow_push(items: Iterable[Mapping[str, Any]], *, reference: str, progress: Progress) -> str:
    """Reads a push's stream to its end; returns the manifest's digest (`sha256:…`) as the registry knows it.

    Raises:
        ImageError: the registry refused, cannot be reached, or the engine closed the connection.
    """
    digest = ""
    tail = Tail()
    for item in _received(items, what=f"the push of {reference}", tail=tail):
        if "error" in item:
            raise push_error(_error_text(item), reference=reference)
        if "aux" in item:
            digest = str(item["aux"].get("Digest", digest))
        status = str(item.get("status", ""))
        if "id" in item:
            progress(_layer(item))
        elif status:
            tail.lines.append(status)
            # Engines before 1.10's manifest format say it in words only.
            found = re.search(r"digest: (sha256:[0-9a-f]{64})", status)
            digest = digest or (found[1] if found else "")
    if not digest:
        message = f"the push of {reference} ended without a digest, so what the registry has is not known"
        raise ImageError(message, hint="hvdcloud push tries again", details=tail.text())
    return digest


def follow_pull(items: Iterable[Mapping[str, Any]], *, reference: str, progress: Progress) -> None:
    """Reads a pull's stream to its end; each state of a layer is reported once, not every megabyte.

    Raises:
        ImageError: the registry refused or cannot be reached, or the engine closed the connection.
    """
    told: dict[str, BuildEvent] = {}
    for item in _received(items, what=f"the pull of {reference}", tail=Tail()):
        if "error" in item:
            raise ImageError(f"{reference} was not pulled: {_error_text(item)}", hint="hvdcloud build tries again")
        if "id" in item:
            layer = replace(_layer(item), step=0, steps=0)
            if told.get(str(item["id"])) != layer:
                told[str(item["id"])] = layer
                progress(layer)


def push_error(text: str, *, reference: str) -> ImageError:
    """The error of a push, with what to do about it."""
    registry = reference.partition("/")[0]
    lower = text.lower()
    if says_refused(text):
        hint = f"docker login {registry} (for Artifact Registry: gcloud auth configure-docker {registry})"
    elif "name unknown" in lower:
        hint = "hvdcloud setup makes the repository; else correct image.repository"
    elif any(word in lower for word in ("connection refused", "no such host", "timeout", "unreachable")):
        hint = f"check that {registry} is up and image.repository is right, then `hvdcloud push` again"
    elif "server gave http response to https client" in lower:
        hint = f"{registry} speaks plain HTTP: add it to insecure-registries in the engine's /etc/docker/daemon.json"
    else:
        hint = "hvdcloud push tries again; layers that have arrived are not sent twice"
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


def _received(items: Iterable[Mapping[str, Any]], *, what: str, tail: Tail) -> Iterator[Mapping[str, Any]]:
    """The items; a connection that breaks becomes an ImageError, an APIError stays what it is."""
    from docker.errors import APIError, DockerException
    from docker.errors import StreamParseError as BrokenItemError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield from items
    except APIError:
        # The engine's answer, not a broken connection: callers know what it refused.
        raise
    except (RequestException, HTTPError, BrokenItemError, DockerException, OSError) as error:
        raise ImageError(
            f"the Docker engine closed the connection during {what}{tail.where and ', ' + tail.where}: {error}",
            hint="docker info shows whether it still runs; then try again",
            details=tail.text(),
        ) from error


def build_error(text: str, *, image: str, tail: Tail, pip_hint: str) -> ImageError:
    """The error of a build, with what to do about it; `text` is what the engine says of the failed instruction."""
    said = tail.text()
    everything = f"{said}\n{text}"
    if full := disk_full(everything, image=image):
        return full
    if refusal := _REFUSAL.search(everything):
        details = _REFUSAL.sub("", said).strip()
        return ImageError(f"{image} can't be a node: {refusal[1]}", hint=refusal[2], details=details)
    why = f"{tail.where}: {text}"
    hint = "the failing step's last lines are above; `hvdcloud build` again continues from the step before"
    if pip := _PIP_ERROR.search(everything):
        why, hint = f"pip: {pip[1]}", pip_hint
    elif tail.where.partition(": ")[2].startswith("FROM "):
        why = f"the image that it starts from is not here and can't be pulled, {why}"
        hint = "check the engine's network; `make base-image` in hvdcloud's repository makes it without a registry"
    return ImageError(f"{image} was not built: {why}", hint=hint, details=said)


def _error_text(item: Mapping[str, Any]) -> str:
    detail = item.get("errorDetail")
    text = detail.get("message") if isinstance(detail, Mapping) else None
    return _ANSI.sub("", str(text or item["error"])).strip()


def inspected(api: Any, reference: str) -> dict[str, Any] | None:
    """What the engine says of an image; None if it has no such image."""
    from docker.errors import ImageNotFound

    try:
        return dict(api.inspect_image(reference))
    except ImageNotFound:
        return None


def other_architecture(api: Any, reference: str, wanted: str) -> str:
    """What an image of the engine is for, if it is not the wanted architecture; "": it is, there is no such image, or
    any will do."""
    found = str((inspected(api, reference) or {}).get("Architecture") or "") if wanted else ""
    return found if found != wanted else ""


def lines_of(text: str) -> list[str]:
    """The lines that are not empty, without colours."""
    return [line for line in (_ANSI.sub("", raw).rstrip() for raw in text.splitlines()) if line]


def short(instruction: str, width: int = 100) -> str:
    """An instruction in one line."""
    text = " ".join(instruction.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _layer(item: Mapping[str, Any]) -> BuildEvent:
    detail = item.get("progressDetail") or {}
    done, size = (int(detail.get(key) or 0) for key in ("current", "total"))
    return BuildEvent(kind="layer", text=f"{item['id']}: {item.get('status', '')}", step=done, steps=size)
